// A block whose step is a method of a Python class.
#include <optional>
#include <string>

#include "block.h"
#include "leaf.h"
#include "support.h"

namespace pysampler::bindings {
namespace {

// Owner: as of EnvBlock.
class PythonBlock : public Block {
 public:
    bool step(std::uint32_t frame) override { return required("step", frame); }
    bool step_once(std::uint32_t frame, std::uint32_t number) override {
        const std::optional<bool> left = overridden("step_once", frame, number);
        return left ? *left : Block::step_once(frame, number);
    }
    bool step_chunk(std::uint32_t frame, std::uint32_t steps, bool last) override {
        return required("step_chunk", frame, steps, last);
    }
    bool step_chunk_once(std::uint32_t frame, std::uint32_t steps, bool last,
                         std::uint32_t number) override {
        const std::optional<bool> left = overridden("step_chunk_once", frame, steps, last, number);
        return left ? *left : Block::step_chunk_once(frame, steps, last, number);
    }

 private:
    template <class... Arguments>
    bool required(const char* name, Arguments... arguments) {
        const std::optional<bool> left = overridden(name, arguments...);
        if (!left) py::pybind11_fail(std::string("cannot step block: it has no method ") + name);
        return *left;
    }

    // The result of a method of the Python class, if it has one.
    template <class... Arguments>
    std::optional<bool> overridden(const char* name, Arguments... arguments) {
        const py::function method = py::get_override(static_cast<const PythonBlock*>(this), name);
        if (!method) return std::nullopt;
        return call_in_worker(method, arguments...).template cast<bool>();
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
