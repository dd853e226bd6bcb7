// One field of a space in the frames, an array [frames, envs, *shape]: writes Python values to its
// rows and reads them back.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "released.h"

namespace pysampler::bindings {

namespace py = pybind11;

inline const py::detail::PyArray_Proxy* array_of(PyObject* object) {
    return py::detail::array_proxy(object);
}
inline bool exact_array(PyObject* object) {
    return Py_TYPE(object) == py::detail::npy_api::get().PyArray_Type_;
}

// The new reference `result`; if it is null, throws the error that Python has set.
inline py::object checked(PyObject* result) {
    if (result == nullptr) throw py::error_already_set();
    return py::reinterpret_steal<py::object>(result);
}

// Calls a function of Python in a worker, see called().
template <class... Arguments>
py::object call_in_worker(const py::handle& function, Arguments... arguments) {
    const py::tuple all = py::make_tuple(arguments...);
    return checked(called([&] { return PyObject_CallObject(function.ptr(), all.ptr()); }));
}

// A reference to item i of a list or tuple, which another thread may change meanwhile; null if it
// has none there any more.
inline py::object item_of(PyObject* sequence, Py_ssize_t i) {
#if PY_VERSION_HEX >= 0x030D0000
    if (PyList_CheckExact(sequence)) {
        PyObject* const item = PyList_GetItemRef(sequence, i);
        if (item == nullptr) PyErr_Clear();
        return py::reinterpret_steal<py::object>(item);
    }
#endif
    return py::reinterpret_borrow<py::object>(PySequence_Fast_ITEMS(sequence)[i]);
}

// The name of an attribute as the very string object that classes use: Python's method cache
// compares names by identity.
inline py::str interned(const char* name) {
    return py::reinterpret_steal<py::str>(checked(PyUnicode_InternFromString(name)).release());
}

// An array [frames, *shape] whose frames are `frame_bytes` apart, each contiguous. Throws
// ValueError if a frame is larger than that.
py::array over_frames(const py::dtype& dtype, const std::vector<py::ssize_t>& shape,
                      py::ssize_t frame_bytes, const void* data, const py::object& owner);

// Whether `object` is an array that C can read: contiguous, aligned, in native byte order.
bool plain_array(PyObject* object);

// Consecutive rows of a frame, for `count` envs from `first` on.
struct Rows {
    std::uint32_t frame;
    std::size_t first;
    std::size_t count;
};

// The rows that make a batch, in order.
class Selection {
 public:
    Selection() = default;
    explicit Selection(const Rows& rows) { add(rows); }
    void add(const Rows& rows) {
        rows_.push_back(rows);
        envs_ += rows.count;
    }
    std::size_t envs() const { return envs_; }
    auto begin() const { return rows_.begin(); }
    auto end() const { return rows_.end(); }

 private:
    std::vector<Rows> rows_;
    std::size_t envs_ = 0;
};

using Ids = py::array_t<std::int32_t, py::array::c_style>;

// Which rows of an array belong to which envs. Borrows its indices.
struct Chosen {
    std::size_t count;
    const std::int32_t* envs = nullptr;  // nullptr: env k
    const std::int32_t* rows = nullptr;  // nullptr: row k of an array of `count` rows

    std::size_t env(std::size_t k) const {
        return envs == nullptr ? k : static_cast<std::size_t>(envs[k]);
    }
    // Sets the bytes of these envs; `to` is that of the first env.
    void fill(void* to, int value) const {
        if (envs == nullptr) {
            std::memset(to, value, count);
        } else {
            for (std::size_t k = 0; k < count; ++k) {
                static_cast<std::byte*>(to)[envs[k]] = static_cast<std::byte>(value);
            }
        }
    }
    void copy(std::byte* to, const void* from, std::size_t bytes) const {
        const auto* source = static_cast<const std::byte*>(from);
        if (envs == nullptr && rows == nullptr) {
            std::memmove(to, source, count * bytes);
            return;
        }
        for (std::size_t k = 0; k < count; ++k) {
            const std::size_t row = rows == nullptr ? k : static_cast<std::size_t>(rows[k]);
            std::memmove(to + env(k) * bytes, source + row * bytes, bytes);
        }
    }
};

// Values of has_final that C++ knows, as in pysampler/_frames/frames.py.
inline constexpr std::uint8_t kFinalHere = 1, kFinalByMail = 2, kLost = 3, kBegun = 4, kSkipped = 5;

// Owner: none needed, it does not change. Rows belong to one side at a time: see frame_access.h.
class Leaf {
 public:
    // `array` is [frames, envs, *shape]; its owner outlives the leaf. With `python` its dtype is
    // int64 or float64, and load() returns plain Python numbers, in nested lists if shaped.
    explicit Leaf(const py::array& array, bool python = false);

    std::byte* row(std::uint32_t frame, std::size_t env) const {
        return base_ + frame * frame_bytes_ + env * stride_;
    }

    // Writes a value to a row, as numpy assignment would. Returns whether load() would return an
    // equal value of the same type: an array of this dtype and shape, or a numpy scalar of this
    // dtype. Throws ValueError (" has ...") for another number of elements and for a number that an
    // integer dtype cannot hold, and any error of numpy's. Common numbers, arrays of other dtypes
    // and flat lists of numbers are converted without numpy.
    bool store(std::uint32_t frame, std::size_t env, PyObject* value) const;

    // A copy of a row: an array, or a numpy scalar if the shape is ().
    py::object load(std::uint32_t frame, std::size_t env) const;
    // A copy of the rows of a batch; zeros where `mask`, if given, is false.
    py::object load_all(const Selection& batch, const bool* mask = nullptr) const;
    // A copy of the rows of all envs in these frames: an array [envs, steps, *shape].
    py::object load_chunk(std::uint32_t frame, std::uint32_t steps) const;
    // Copies a row to row `at` of an array of such rows.
    void copy_row(std::uint32_t frame, std::size_t env, PyObject* rows, std::size_t at) const {
        std::memcpy(array_of(rows)->data + at * row_bytes_, row(frame, env), row_bytes_);
    }
    // A view of all rows of a frame.
    py::array view_all(std::uint32_t frame) const;
    std::size_t row_bytes() const { return row_bytes_; }
    // Whether `value` is an array of all rows of a frame, of this dtype and shape, for store_all().
    bool matches_all(PyObject* value, std::size_t envs) const;
    // The same with `steps` rows for each env, for store_row().
    bool matches_chunk(PyObject* value, std::size_t envs, std::size_t steps) const;
    void store_all(std::uint32_t frame, PyObject* value, std::size_t envs) const {
        std::memcpy(row(frame, 0), array_of(value)->data, envs * row_bytes_);
    }
    // Like store() for values for which that returns true; writes nothing and returns false for
    // all others.
    bool store_same(std::uint32_t frame, std::size_t env, PyObject* value) const;
    // Writes plain Python numbers, ints or floats according to the dtype, in nested lists of this
    // shape; false for anything else.
    bool store_python(std::uint32_t frame, std::size_t env, PyObject* value) const {
        return put_python(row(frame, env), value, 0);
    }
    // Writes the chosen rows of an array if it has this dtype and shape, and a row for each env or
    // all rows that are chosen; false if not. `first` is the env that the choice counts from.
    bool store_rows(std::uint32_t frame, std::size_t first, const py::array& array,
                    const Chosen& chosen) const;
    // Writes row `at` of an array that matches_all().
    void store_row(std::uint32_t frame, std::size_t env, PyObject* rows, std::size_t at) const {
        std::memcpy(row(frame, env), array_of(rows)->data + at * row_bytes_, row_bytes_);
    }

    // Whether `value` is a contiguous array of this dtype and shape.
    bool matches(PyObject* value) const;
    int type_num() const { return type_num_; }
    PyTypeObject* scalar_type() const { return scalar_type_; }

 private:
    py::object fresh(const std::vector<py::ssize_t>& shape) const;
    bool is_mine(PyObject* value) const;
    bool store_number(std::byte* to, PyObject* value) const;
    bool store_array(std::byte* to, PyObject* value) const;
    bool store_sequence(std::byte* to, PyObject* value) const;
    bool put_python(std::byte* to, PyObject* value, std::size_t depth) const;
    py::object get_python(const std::byte* from, std::size_t depth) const;
    std::size_t bytes_below(std::size_t depth) const;
    bool has_my_shape(PyObject* array) const;
    void convert(std::byte* to, PyObject* value) const;
    void expect_equal(const py::array& row, const py::array& from) const;

    py::array array_;
    std::byte* base_;
    std::size_t frame_bytes_;
    std::size_t row_bytes_;
    std::size_t stride_;  // from a row to the next; rows are packed except in action_leaf()
    py::dtype dtype_;
    int type_num_;
    int c_type_;  // the same; -1 if C would read it in the wrong byte order
    PyTypeObject* scalar_type_;
    bool python_;  // load() returns plain Python numbers
    std::vector<py::ssize_t> shape_;
    std::vector<py::ssize_t> batch_shape_;  // [envs, *shape]
};

// Frames store the type of actions as numpy's type number of a dtype; with this added, int64 and
// float64 stand for plain Python ints and floats.
inline constexpr std::int32_t kPythonNumbers = 1 << 16;

// A field for actions of another type than the space's, in the `bytes` [frames, envs, bytes] that
// frames reserve for them; `shape` is that of one action. The offset of a row does not depend on
// the type, since groups at work at the same time may use different types.
Leaf action_leaf(const py::array& bytes, std::int32_t type, const std::vector<py::ssize_t>& shape);

// A leaf for each array of a sequence.
inline std::vector<Leaf> leaves_of(const py::object& arrays) {
    std::vector<Leaf> leaves;
    for (const py::handle array : arrays) leaves.emplace_back(array.cast<py::array>());
    return leaves;
}

}  // namespace pysampler::bindings
