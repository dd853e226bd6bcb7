// A block: envs that step together and write their results into the rows of a frame. The worker's
// loop knows envs only through this interface; a block knows nothing of commands and waits.
#pragma once

#include <cstdint>

namespace pysampler {

class Block {
 public:
    virtual ~Block() = default;

    // Steps every env of the block: reads actions from this frame, and writes results to it.
    // Returns whether there are results that have no place in the frame.
    virtual bool step(std::uint32_t frame) = 0;
};

}  // namespace pysampler
