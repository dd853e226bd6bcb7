// A column of small objects in the frames, each as a pickle in a row of bytes: [length:1 | pickle].
//
// Both sides cache the pickles of constants, so an env that returns the same string in each step
// costs one look-up; other objects are pickled and unpickled each time, and never shared.
#pragma once

#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>

#include "leaf.h"

namespace pysampler::bindings {

// Owner: that of its Infos.
class Pickles {
 public:
    // `rows` is [frames, envs, bytes], for objects of exactly this type.
    Pickles(const Leaf& rows, const py::object& type);

    bool accepts(PyObject* value) const {
        return reinterpret_cast<PyObject*>(Py_TYPE(value)) == type_.ptr() && misfits_ < kMisfits;
    }
    // A worker. Writes nothing and returns false if the pickle does not fit or pickling fails.
    bool store(std::uint32_t frame, std::size_t env, PyObject* value);
    // The parent. Throws the error of pickle if this process lacks, say, the worker's class.
    py::object load(std::uint32_t frame, std::size_t env);

    // Whether the value is immutable throughout, so that it may be shared.
    static bool is_constant(PyObject* value);

 private:
    // How many constants are cached before the cache is cleared.
    static constexpr std::size_t kRemembered = 256;
    // After this many values in a row that did not fit, the column accepts no more.
    static constexpr int kMisfits = 16;

    struct Hash {
        using is_transparent = void;
        std::size_t operator()(std::string_view text) const {
            return std::hash<std::string_view>()(text);
        }
    };
    struct Stored {
        py::object value;  // a reference, so that no other object gets its address
        std::string pickle;
    };

    Leaf rows_;
    py::object type_;
    py::object dumps_, loads_, protocol_;
    int misfits_ = 0;
    std::unordered_map<PyObject*, Stored> stored_;
    std::unordered_map<std::string, py::object, Hash, std::equal_to<>> loaded_;
};

}  // namespace pysampler::bindings
