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

    // Both in the user's process, where a signal handler may raise an exception half-way.
    // Called again with the number of that command, it resumes with the env that was interrupted.
    virtual bool step_once(std::uint32_t frame, std::uint32_t /*number*/) { return step(frame); }
    virtual bool step_chunk_once(std::uint32_t frame, std::uint32_t steps, bool last,
                                 std::uint32_t /*number*/) {
        return step_chunk(frame, steps, last);
    }
};

}  // namespace pysampler
