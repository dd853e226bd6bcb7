// Reads and converts Python and numpy numbers without calling Python.
#pragma once

#include <pybind11/numpy.h>

#include <cstddef>
#include <cstdint>
#include <optional>

namespace pysampler::bindings {

struct Number {
    bool whole;
    std::int64_t integer;  // if whole
    double real;           // otherwise
};

// The value of a Python int or float, or of a numpy scalar; nullopt for any other object, and for a
// number that fits neither 64 bits nor a double.
std::optional<Number> number_of(PyObject* value);

// Writes a number as an element of a numpy type, as numpy would convert it. Returns false if numpy
// would warn, convert differently, or truncate a whole number.
bool put_number(const Number& number, int type, void* to);

// The same for `count` contiguous elements of one type.
bool cast_elements(int from_type, const void* from, int to_type, void* to, std::size_t count);

}  // namespace pysampler::bindings
