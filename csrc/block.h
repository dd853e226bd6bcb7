// A block: anything that can step its envs into the rows of a frame. The worker's loop knows no
// more of envs than this, and a block nothing of who waits for it.
#pragma once

#include <cstdint>

namespace pysampler {

class Block {
 public:
    virtual ~Block() = default;

    // Steps every env of the block: actions are read from this frame and results written to it.
    // True if something is left that has no place in the frame.
    virtual bool step(std::uint32_t frame) = 0;
};

}  // namespace pysampler
