// Draws numbers from many generators of NumPy at once, each as its own generator would. A call of
// Python for each generator would take longer than the step of a batch.
#include <dlfcn.h>

#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>

#include "classic.h"
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

void expect_rows(const py::list& generators, const py::array& out) {
    if (out.ndim() != 2 || static_cast<std::size_t>(out.shape(0)) != generators.size()) {
        throw py::value_error("cannot draw: expected a row for each of " +
                              std::to_string(generators.size()) + " generators");
    }
}

BitGenerator* bits_of(py::handle generator) {
    const py::object capsule = generator.attr("bit_generator").attr("capsule");
    void* bits = PyCapsule_GetPointer(capsule.ptr(), "BitGenerator");
    if (bits == nullptr) throw py::error_already_set();
    return static_cast<BitGenerator*>(bits);
}

// NumPy refuses the same ranges, with the same kinds of errors.
void expect_range(double range) {
    if (!std::isfinite(range)) {
        PyErr_SetString(PyExc_OverflowError, "cannot draw: high - low is not finite");
        throw py::error_already_set();
    }
    if (std::signbit(range)) {
        throw py::value_error("cannot draw: high - low is " + std::to_string(range) +
                              ", expected at least 0");
    }
}

// Fills `out` [n, k] with low + (high - low) * u; low and high have one number or k.
void uniform(const py::list& generators, const Doubles& low, const Doubles& high,
             py::array_t<double, py::array::c_style>& out) {
    expect_rows(generators, out);
    const py::ssize_t count = out.shape(1);
    for (const Doubles* bound : {&low, &high}) {
        if (bound->size() != 1 && bound->size() != count) {
            throw py::value_error("cannot draw: " + std::to_string(bound->size()) +
                                  " bounds, expected one or " + std::to_string(count));
        }
    }
    const auto from = [&](py::ssize_t i) { return low.data()[low.size() == 1 ? 0 : i]; };
    const auto range = [&](py::ssize_t i) {
        return high.data()[high.size() == 1 ? 0 : i] - from(i);
    };
    const py::ssize_t ranges = low.size() == 1 && high.size() == 1 ? 1 : count;
    for (py::ssize_t i = 0; i < ranges; ++i) expect_range(range(i));
    double* to = out.mutable_data();
    for (const py::handle generator : generators) {
        BitGenerator* bits = bits_of(generator);
        for (py::ssize_t i = 0; i < count; ++i) {
            *to++ = from(i) + range(i) * bits->next_double(bits->state);
        }
    }
}

// NumPy's function behind Generator.standard_normal, which its documentation offers to extensions;
// nullptr if its library does not export it.
using FillNormal = void (*)(BitGenerator*, py::ssize_t, double*);
FillNormal normal_of_numpy() {
    const auto library = py::module_::import("numpy.random._generator").attr("__file__");
    void* handle = dlopen(library.cast<std::string>().c_str(), RTLD_NOW | RTLD_NOLOAD);
    void* found = handle == nullptr ? nullptr : dlsym(handle, "random_standard_normal_fill");
    return reinterpret_cast<FillNormal>(found);
}

// Fills `out` [n, k]; false if NumPy's function is not known.
bool standard_normal(const py::list& generators, py::array_t<double, py::array::c_style>& out) {
    static std::atomic<FillNormal> known{nullptr};
    expect_rows(generators, out);
    // Of several threads each finds the same.
    FillNormal fill = known.load(std::memory_order_relaxed);
    if (fill == nullptr) known.store(fill = normal_of_numpy(), std::memory_order_relaxed);
    if (fill == nullptr) return false;
    double* to = out.mutable_data();
    for (const py::handle generator : generators) {
        fill(bits_of(generator), out.shape(1), to);
        to += out.shape(1);
    }
    return true;
}

}  // namespace

double drawn(py::handle generator, double low, double range) {
    BitGenerator* bits = bits_of(generator);
    return low + range * bits->next_double(bits->state);
}

void register_draws(py::module_& m) {
    m.def("uniform", &uniform, py::arg("generators"), py::arg("low"), py::arg("high"),
          py::arg("out"),
          "Fill each row of `out` with numbers from `low` to `high`, drawn with one generator.");
    m.def("standard_normal", &standard_normal, py::arg("generators"), py::arg("out"),
          "Fill each row of `out` with standard normal numbers, drawn with one generator; return "
          "False if this NumPy does not export how.");
}

}  // namespace pysampler::bindings
