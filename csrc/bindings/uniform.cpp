// Draws uniform numbers from many generators of NumPy at once, each number as its own generator's
// `uniform` would. A call of Python for each generator would take longer than the step of a batch.
#include <cstddef>
#include <cstdint>
#include <string>

#include "support.h"

namespace pysampler::bindings {
namespace {

// NumPy's numpy/random/bitgen.h: a part of its C API.
struct BitGenerator {
    void* state;
    std::uint64_t (*next_uint64)(void*);
    std::uint32_t (*next_uint32)(void*);
    double (*next_double)(void*);
    std::uint64_t (*next_raw)(void*);
};

using Doubles = py::array_t<double, py::array::c_style | py::array::forcecast>;

// Fills `out` [n, k] with low + (high - low) * u; low and high have one number or k.
void uniform(const py::list& generators, const Doubles& low, const Doubles& high,
             py::array_t<double, py::array::c_style>& out) {
    if (out.ndim() != 2 || static_cast<std::size_t>(out.shape(0)) != generators.size()) {
        throw py::value_error("cannot draw: expected a row for each of " +
                              std::to_string(generators.size()) + " generators");
    }
    const py::ssize_t count = out.shape(1);
    for (const Doubles* bound : {&low, &high}) {
        if (bound->size() != 1 && bound->size() != count) {
            throw py::value_error("cannot draw: " + std::to_string(bound->size()) +
                                  " bounds, expected one or " + std::to_string(count));
        }
    }
    double* to = out.mutable_data();
    for (const py::handle generator : generators) {
        const py::object capsule = generator.attr("bit_generator").attr("capsule");
        auto* bits =
            static_cast<BitGenerator*>(PyCapsule_GetPointer(capsule.ptr(), "BitGenerator"));
        if (bits == nullptr) throw py::error_already_set();
        for (py::ssize_t i = 0; i < count; ++i) {
            const double from = low.data()[low.size() == 1 ? 0 : i];
            const double range = high.data()[high.size() == 1 ? 0 : i] - from;
            *to++ = from + range * bits->next_double(bits->state);
        }
    }
}

}  // namespace

void register_uniform(py::module_& m) {
    m.def("uniform", &uniform, py::arg("generators"), py::arg("low"), py::arg("high"),
          py::arg("out"),
          "Fill each row of `out` with numbers from `low` to `high`, drawn with one generator.");
}

}  // namespace pysampler::bindings
