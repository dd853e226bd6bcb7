// A block whose step is a method of a Python class.
#include <string>

#include "block.h"
#include "leaf.h"
#include "support.h"

namespace pysampler::bindings {
namespace {

// Owner: as of EnvBlock.
class PythonBlock : public Block {
 public:
    bool step(std::uint32_t frame) override { return call("step", frame).cast<bool>(); }
    bool step_chunk(std::uint32_t frame, std::uint32_t steps, bool last) override {
        return call("step_chunk", frame, steps, last).cast<bool>();
    }

 private:
    template <class... Arguments>
    py::object call(const char* name, Arguments... arguments) {
        const py::function method = py::get_override(static_cast<const PythonBlock*>(this), name);
        if (!method) py::pybind11_fail(std::string("cannot use block: it has no method ") + name);
        return call_in_worker(method, arguments...);
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
