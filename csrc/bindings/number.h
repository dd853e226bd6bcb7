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

// The value of Python's own int or float, or of a numpy scalar; nothing for any other object, and
// for what fits neither 64 bits nor a double.
std::optional<Number> number_of(PyObject* value);

// Writes a number as an element of a numpy type, as numpy would convert it. False where numpy would
// warn, or does it in another way.
bool put_number(const Number& number, int type, void* to);

// The same of `count` elements of one type, one behind the other.
bool cast_elements(int from_type, const void* from, int to_type, void* to, std::size_t count);

}  // namespace pysampler::bindings
