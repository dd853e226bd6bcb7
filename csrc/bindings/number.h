// Numbers of Python and numpy, read and converted without calling Python.
#pragma once

#include <pybind11/numpy.h>

#include <cstddef>
#include <cstdint>
#include <optional>

namespace pysampler::bindings {

struct Number {
    bool whole;
    std::int64_t integer;  // of a whole number
    double real;           // of any other
};

// The value of a Python int or float, or of a numpy scalar; nothing for any other object, and for a
// number that fits neither 64 bits nor a double.
std::optional<Number> number_of(PyObject* value);

// Writes a number as an element of a numpy type, as numpy would convert it. False where numpy would
// warn, converts it differently, or cuts a whole number off.
bool put_number(const Number& number, int type, void* to);

// The same for `count` contiguous elements of one type.
bool cast_elements(int from_type, const void* from, int to_type, void* to, std::size_t count);

}  // namespace pysampler::bindings
