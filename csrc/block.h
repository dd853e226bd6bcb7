// A block: envs that step together and write their results into the rows of a frame. The worker's
// loop knows envs only through this interface; a block knows nothing of commands and waits.
#pragma once

#include <cstdint>

namespace pysampler {

class Block {
 public:
    virtual ~Block() = default;

    // Steps every env of the block: reads actions from this frame and writes results to it.
    // Returns whether some results do not fit into the frame.
    virtual bool step(std::uint32_t frame) = 0;

    // Lets every env of the block make `steps` steps in a row: step k reads its action from the
    // frame `frame` + k, and writes its results there. An env whose episode ends, or begins, stops
    // there; its rows in the frames that follow are marked. With `last`, the caller reads no
    // results of an env but those of its last step, and all rewards. Returns as above.
    virtual bool step_chunk(std::uint32_t frame, std::uint32_t steps, bool last) = 0;

    // In the user's process an exception, such as a signal handler's, may end a step half-way.
    bool torn = false;    // the envs are in unknown states, and must be replaced
    bool halted = false;  // only a wait was ended: the same command, made again, goes on with it
};

}  // namespace pysampler
