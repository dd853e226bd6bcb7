// A block whose step is a method of a Python class.
#include "block.h"
#include "support.h"

namespace pysampler::bindings {
namespace {

// Owner: as of EnvBlock.
class PythonBlock : public Block {
 public:
    bool step(std::uint32_t frame) override {
        PYBIND11_OVERRIDE_PURE(bool, PythonBlock, step, frame);
    }
    bool step_once(std::uint32_t frame, std::uint32_t number) override {
        PYBIND11_OVERRIDE_IMPL(bool, PythonBlock, "step_once", frame, number);
        return Block::step_once(frame, number);
    }
    bool step_chunk(std::uint32_t frame, std::uint32_t steps, bool last) override {
        PYBIND11_OVERRIDE_PURE(bool, PythonBlock, step_chunk, frame, steps, last);
    }
    bool step_chunk_once(std::uint32_t frame, std::uint32_t steps, bool last,
                         std::uint32_t number) override {
        PYBIND11_OVERRIDE_IMPL(bool, PythonBlock, "step_chunk_once", frame, steps, last, number);
        return Block::step_chunk_once(frame, steps, last, number);
    }
};

}  // namespace

void register_python_block(py::module_& m) {
    Class<PythonBlock, Block>(
        m, "PythonBlock",
        "Base class of blocks in Python: step(frame) writes results into the frame and returns "
        "whether there is overflow.")
        .def(py::init<>());
}

}  // namespace pysampler::bindings
