// One field of a space in the frames: an array [frames, envs, *shape], and how a Python value gets
// into a row of it and out again.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

namespace pysampler::bindings {

namespace py = pybind11;

inline const py::detail::PyArray_Proxy* array_of(PyObject* object) {
    return py::detail::array_proxy(object);
}
inline bool exact_array(PyObject* object) {
    return Py_TYPE(object) == py::detail::npy_api::get().PyArray_Type_;
}

// Takes the Python object, or throws what Python raised.
inline py::object checked(PyObject* result) {
    if (result == nullptr) throw py::error_already_set();
    return py::reinterpret_steal<py::object>(result);
}

// An array [frames, *shape] whose frames lie `frame_bytes` apart and are each in one piece. Throws
// ValueError if they do not fit.
py::array over_frames(const py::dtype& dtype, const std::vector<py::ssize_t>& shape,
                      py::ssize_t frame_bytes, const void* data, const py::object& owner);

// An array in the order, of the byte order and with the alignment that C reads.
bool plain_array(PyObject* object);

// Some rows of a frame, one behind the other: those of the envs from `first` on.
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

class Leaf {
 public:
    // `array` is [frames, envs, *shape]; its owner outlives the leaf. With `python`, it is of int64
    // or float64, and what is loaded is Python's own: a number, or a list of lists.
    explicit Leaf(const py::array& array, bool python = false);

    std::byte* row(std::uint32_t frame, std::size_t env) const {
        return base_ + frame * frame_bytes_ + env * row_bytes_;
    }

    // Writes a value by value, as numpy assignment would. True if it was just what a row holds:
    // an array of this dtype and shape, or a numpy scalar of this dtype. Throws ValueError for
    // another number of elements, and what numpy raises. Common numbers, arrays of other dtypes and
    // flat lists of numbers do without numpy.
    bool store(std::uint32_t frame, std::size_t env, PyObject* value) const;

    // A new object of its own: an array, or a numpy scalar where the shape is ().
    py::object load(std::uint32_t frame, std::size_t env) const;
    // A new array of the rows of a batch; zero where `mask` is, if there is one.
    py::object load_all(const Selection& batch, const bool* mask = nullptr) const;
    // One row, into an array of such rows.
    void copy_row(std::uint32_t frame, std::size_t env, PyObject* rows, std::size_t at) const {
        std::memcpy(array_of(rows)->data + at * row_bytes_, row(frame, env), row_bytes_);
    }
    // A view of them.
    py::object view_all(std::uint32_t frame) const;
    // The rows as an object that each view_of() it refers to, and so tells whether there is one.
    py::object rows_to_lend(std::uint32_t frame) const;
    py::object view_of(const py::object& rows) const;
    std::size_t row_bytes() const { return row_bytes_; }
    // Whether it is an array of just those rows; writes it.
    bool matches_all(PyObject* value, std::size_t envs) const;
    void store_all(std::uint32_t frame, PyObject* value, std::size_t envs) const {
        std::memcpy(row(frame, 0), array_of(value)->data, envs * row_bytes_);
    }
    // Writes what store() would return true for; false for anything else.
    bool store_same(std::uint32_t frame, std::size_t env, PyObject* value) const;
    // Writes Python's own numbers, ints or floats as the dtype is, where the shape has dimensions
    // in exact lists; false for anything else.
    bool store_python(std::uint32_t frame, std::size_t env, PyObject* value) const {
        return put_python(row(frame, env), value, 0);
    }
    // One row of such an array.
    void store_row(std::uint32_t frame, std::size_t env, PyObject* rows, std::size_t at) const {
        std::memcpy(row(frame, env), array_of(rows)->data + at * row_bytes_, row_bytes_);
    }

    // Whether it is an array of this dtype and shape, in one piece.
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

    py::array array_;
    std::byte* base_;
    std::size_t frame_bytes_;
    std::size_t row_bytes_;
    py::dtype dtype_;
    int type_num_;
    int c_type_;  // the same; -1 where C would read it in the wrong byte order
    PyTypeObject* scalar_type_;
    bool python_;
    std::vector<py::ssize_t> shape_;
    std::vector<py::ssize_t> batch_shape_;  // [envs, *shape]
};

// What the frames say of the type of actions: the number of a dtype, and this added to it where
// Python's own numbers are meant, ints of int64 and floats of float64.
inline constexpr std::int32_t kPythonNumbers = 1 << 16;

// Actions of such a type in the bytes [frames, ...] that there are for them; `shape` without the
// frames.
Leaf action_leaf(const py::array& bytes, std::int32_t type, std::vector<py::ssize_t> shape);

inline std::vector<Leaf> leaves_of(const py::object& arrays) {
    std::vector<Leaf> leaves;
    for (const py::handle array : arrays) leaves.emplace_back(array.cast<py::array>());
    return leaves;
}

}  // namespace pysampler::bindings
