#include "leaf.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <numeric>
#include <string_view>

#include "number.h"

namespace pysampler::bindings {
namespace {

using Npy = py::detail::npy_api;

const Npy& npy() { return Npy::get(); }

std::string shape_text(const py::ssize_t* shape, std::size_t count) {
    std::string text = "(";
    for (std::size_t i = 0; i < count; ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
    return text + (count == 1 ? ",)" : ")");
}

bool native(const py::dtype& dtype) { return dtype.byteorder() == '=' || dtype.byteorder() == '|'; }

}  // namespace

py::array over_frames(const py::dtype& dtype, const std::vector<py::ssize_t>& shape,
                      py::ssize_t frame_bytes, const void* data, const py::object& owner) {
    std::vector<py::ssize_t> strides(shape.size());
    py::ssize_t stride = dtype.itemsize();
    for (std::size_t i = shape.size(); i-- > 1;) {
        strides[i] = stride;
        stride *= shape[i];
    }
    if (stride > frame_bytes)
        throw py::value_error("cannot lay out array: " + std::to_string(stride) +
                              " bytes, expected at most those of a frame, " +
                              std::to_string(frame_bytes));
    strides[0] = frame_bytes;
    return {dtype, shape, strides, data, owner};
}

bool plain_array(PyObject* object) {
    if (!exact_array(object)) return false;
    const auto* proxy = array_of(object);
    constexpr int kInOrder = Npy::NPY_ARRAY_C_CONTIGUOUS_ | Npy::NPY_ARRAY_ALIGNED_;
    return (proxy->flags & kInOrder) == kInOrder &&
           native(py::reinterpret_borrow<py::dtype>(proxy->descr));
}

Leaf::Leaf(const py::array& array, bool python)
    : array_(array),
      base_(static_cast<std::byte*>(const_cast<void*>(array.data()))),
      frame_bytes_(static_cast<std::size_t>(array.strides(0))),
      row_bytes_(static_cast<std::size_t>(
          std::accumulate(array.shape() + 2, array.shape() + array.ndim(), array.itemsize(),
                          std::multiplies<py::ssize_t>()))),
      stride_(static_cast<std::size_t>(array.strides(1))),
      dtype_(array.dtype()),
      type_num_(dtype_.num()),
      c_type_(native(dtype_) ? type_num_ : -1),
      scalar_type_(reinterpret_cast<PyTypeObject*>(
          checked(npy().PyArray_TypeObjectFromType_(type_num_)).release().ptr())),
      python_(python),
      shape_(array.shape() + 2, array.shape() + array.ndim()),
      batch_shape_(array.shape() + 1, array.shape() + array.ndim()) {}

Leaf action_leaf(const py::array& bytes, std::int32_t type, const std::vector<py::ssize_t>& shape) {
    const py::dtype dtype(type % kPythonNumbers);
    std::vector<py::ssize_t> all{bytes.shape(0), bytes.shape(1)};
    all.insert(all.end(), shape.begin(), shape.end());
    std::vector<py::ssize_t> strides(all.size());
    py::ssize_t packed = dtype.itemsize();
    for (std::size_t i = all.size(); i-- > 2;) {
        strides[i] = packed;
        packed *= all[i];
    }
    if (packed > bytes.shape(2)) {
        throw py::value_error("cannot read actions: " + std::to_string(packed) +
                              " bytes, expected at most " + std::to_string(bytes.shape(2)));
    }
    strides[0] = bytes.strides(0);
    strides[1] = bytes.strides(1);
    return Leaf(py::array(dtype, all, strides, bytes.data(), bytes), type >= kPythonNumbers);
}

// Whether `value` is a contiguous array of this dtype.
bool Leaf::is_mine(PyObject* value) const {
    if (!exact_array(value)) return false;
    const auto* proxy = array_of(value);
    return (proxy->descr == dtype_.ptr() ||
            npy().PyArray_EquivTypes_(proxy->descr, dtype_.ptr())) &&
           (proxy->flags & Npy::NPY_ARRAY_C_CONTIGUOUS_);
}

bool Leaf::has_my_shape(PyObject* array) const {
    const auto* proxy = array_of(array);
    return static_cast<std::size_t>(proxy->nd) == shape_.size() &&
           std::equal(shape_.begin(), shape_.end(), proxy->dimensions);
}

bool Leaf::matches(PyObject* value) const { return is_mine(value) && has_my_shape(value); }

bool Leaf::matches_all(PyObject* value, std::size_t envs) const {
    if (!is_mine(value)) return false;
    const auto* proxy = array_of(value);
    return static_cast<std::size_t>(proxy->nd) == shape_.size() + 1 &&
           static_cast<std::size_t>(proxy->dimensions[0]) == envs &&
           std::equal(shape_.begin(), shape_.end(), proxy->dimensions + 1);
}

bool Leaf::store_rows(std::uint32_t frame, std::size_t first, const py::array& array,
                      const Chosen& chosen) const {
    if (array.ndim() == 0) return false;
    const auto height = static_cast<std::size_t>(array.shape(0));
    const py::array packed = py::array::ensure(array, py::array::c_style);
    if (!matches_all(packed.ptr(), chosen.rows != nullptr ? height : chosen.count)) return false;
    for (std::size_t k = 0; chosen.rows != nullptr && k < chosen.count; ++k) {
        if (static_cast<std::size_t>(chosen.rows[k]) >= height) return false;
    }
    chosen.copy(row(frame, first), packed.data(), row_bytes_);
    return true;
}

bool Leaf::matches_chunk(PyObject* value, std::size_t envs, std::size_t steps) const {
    if (!is_mine(value)) return false;
    const auto* proxy = array_of(value);
    return static_cast<std::size_t>(proxy->nd) == shape_.size() + 2 &&
           static_cast<std::size_t>(proxy->dimensions[0]) == envs &&
           static_cast<std::size_t>(proxy->dimensions[1]) == steps &&
           std::equal(shape_.begin(), shape_.end(), proxy->dimensions + 2);
}

bool Leaf::store_same(std::uint32_t frame, std::size_t env, PyObject* value) const {
    std::byte* to = row(frame, env);
    if (shape_.empty()) {
        if (Py_TYPE(value) != scalar_type_ || c_type_ != type_num_) return false;
        npy().PyArray_ScalarAsCtype_(value, to);
        return true;
    }
    if (!matches(value)) return false;
    std::memcpy(to, array_of(value)->data, row_bytes_);
    return true;
}

bool Leaf::store(std::uint32_t frame, std::size_t env, PyObject* value) const {
    if (store_same(frame, env, value)) return true;
    std::byte* to = row(frame, env);
    if (!store_number(to, value) && !store_array(to, value) && !store_sequence(to, value)) {
        convert(to, value);
    }
    return false;
}

bool Leaf::store_number(std::byte* to, PyObject* value) const {
    if (!shape_.empty()) return false;
    if (type_num_ == Npy::NPY_BOOL_ && PyBool_Check(value)) {
        *to = std::byte{value == Py_True};
        return true;
    }
    const auto number = number_of(value);
    return number && put_number(*number, c_type_, to);
}

// An array of this shape and another dtype.
bool Leaf::store_array(std::byte* to, PyObject* value) const {
    if (!plain_array(value) || !has_my_shape(value)) return false;
    const auto* proxy = array_of(value);
    const int type = py::detail::array_descriptor_proxy(proxy->descr)->type_num;
    const auto count = row_bytes_ / static_cast<std::size_t>(dtype_.itemsize());
    return cast_elements(type, proxy->data, c_type_, to, count);
}

// A list or tuple of numbers.
bool Leaf::store_sequence(std::byte* to, PyObject* value) const {
    if (shape_.size() != 1 || !(PyList_CheckExact(value) || PyTuple_CheckExact(value)) ||
        PySequence_Fast_GET_SIZE(value) != shape_[0]) {
        return false;
    }
    for (py::ssize_t i = 0; i < shape_[0]; ++i, to += bytes_below(1)) {
        const py::object item = item_of(value, i);
        const auto number = item ? number_of(item.ptr()) : std::nullopt;
        if (!number || !put_number(*number, c_type_, to)) return false;
    }
    return true;
}

// The bytes of one element after indexing `depth` dimensions.
std::size_t Leaf::bytes_below(std::size_t depth) const {
    return static_cast<std::size_t>(
        std::accumulate(shape_.begin() + static_cast<std::ptrdiff_t>(depth), shape_.end(),
                        dtype_.itemsize(), std::multiplies<py::ssize_t>()));
}

bool Leaf::put_python(std::byte* to, PyObject* value, std::size_t depth) const {
    if (depth == shape_.size()) {
        const bool mine = type_num_ == Npy::NPY_DOUBLE_ ? PyFloat_CheckExact(value) != 0
                                                        : PyLong_CheckExact(value) != 0;
        const auto number = mine ? number_of(value) : std::nullopt;
        return number && put_number(*number, c_type_, to);
    }
    if (!PyList_CheckExact(value) || PyList_GET_SIZE(value) != shape_[depth]) return false;
    for (py::ssize_t i = 0; i < shape_[depth]; ++i, to += bytes_below(depth + 1)) {
        const py::object item = item_of(value, i);
        if (!item || !put_python(to, item.ptr(), depth + 1)) return false;
    }
    return true;
}

py::object Leaf::get_python(const std::byte* from, std::size_t depth) const {
    if (depth < shape_.size()) {
        py::list all(static_cast<std::size_t>(shape_[depth]));
        for (std::size_t i = 0; i < all.size(); ++i, from += bytes_below(depth + 1)) {
            all[i] = get_python(from, depth + 1);
        }
        return all;
    }
    if (type_num_ == Npy::NPY_DOUBLE_) {
        double number;
        std::memcpy(&number, from, sizeof number);
        return py::float_(number);
    }
    std::int64_t number;
    std::memcpy(&number, from, sizeof number);
    return py::int_(number);
}

void Leaf::convert(std::byte* to, PyObject* value) const {
    if (PyDict_Check(value)) {
        throw py::value_error(" is a dict, expected an array of shape " +
                              shape_text(shape_.data(), shape_.size()));
    }
    py::object from = checked(npy().PyArray_FromAny_(value, nullptr, 0, 0, 0, nullptr));
    const auto* proxy = array_of(from.ptr());
    const auto given = static_cast<std::size_t>(proxy->nd);
    if (given != shape_.size() || !std::equal(shape_.begin(), shape_.end(), proxy->dimensions)) {
        py::ssize_t size = 1, wanted = 1;
        for (std::size_t i = 0; i < given; ++i) size *= proxy->dimensions[i];
        for (const py::ssize_t n : shape_) wanted *= n;
        if (size != wanted) {
            throw py::value_error(" has shape " + shape_text(proxy->dimensions, given) +
                                  ", expected " + shape_text(shape_.data(), shape_.size()));
        }
        from = from.attr("reshape")(shape_);
    }
    const py::array row(dtype_, shape_, to, py::none());  // a view: it has a base
    if (npy().PyArray_CopyInto_(row.ptr(), from.ptr()) != 0) throw py::error_already_set();
    if (std::string_view("biu").find(dtype_.kind()) != std::string_view::npos) {
        expect_equal(row, from);
    }
}

// numpy silently truncates values that an integer dtype cannot hold: raise instead.
void Leaf::expect_equal(const py::array& row, const py::array& from) const {
    const py::array lost = row.attr("__ne__")(from);
    if (!lost.attr("any")().cast<bool>()) return;
    const py::object first = from.attr("__getitem__")(lost).attr("flat").attr("__getitem__")(0);
    throw py::value_error(" has " + py::repr(first.attr("item")()).cast<std::string>() +
                          ", expected " + py::str(dtype_).cast<std::string>());
}

py::object Leaf::fresh(const std::vector<py::ssize_t>& shape) const {
    return checked(npy().PyArray_NewFromDescr_(npy().PyArray_Type_, dtype_.inc_ref().ptr(),
                                               static_cast<int>(shape.size()), shape.data(),
                                               nullptr, nullptr, 0, nullptr));
}

py::object Leaf::load(std::uint32_t frame, std::size_t env) const {
    std::byte* from = row(frame, env);
    if (python_) return get_python(from, 0);
    if (shape_.empty()) return checked(npy().PyArray_Scalar_(from, dtype_.ptr(), nullptr));
    py::object copy = fresh(shape_);
    std::memcpy(array_of(copy.ptr())->data, from, row_bytes_);
    return copy;
}

py::object Leaf::load_all(const Selection& batch, const bool* mask) const {
    std::vector<py::ssize_t> shape = batch_shape_;
    shape[0] = static_cast<py::ssize_t>(batch.envs());
    py::object all = fresh(shape);
    char* const begin = array_of(all.ptr())->data;
    char* to = begin;
    for (const auto& [frame, first, count] : batch) {
        if (stride_ == row_bytes_) {
            std::memcpy(to, row(frame, first), count * row_bytes_);
            to += count * row_bytes_;
            continue;
        }
        for (std::size_t env = first; env < first + count; ++env, to += row_bytes_) {
            std::memcpy(to, row(frame, env), row_bytes_);
        }
    }
    // A corrupt frame may hold any byte; a C++ bool must be 0 or 1.
    if (type_num_ == Npy::NPY_BOOL_) {
        std::transform(begin, to, begin, [](char one) { return one != 0; });
    }
    for (std::size_t at = 0; mask != nullptr && at < batch.envs(); ++at) {
        if (!mask[at]) std::memset(begin + at * row_bytes_, 0, row_bytes_);
    }
    return all;
}

py::object Leaf::load_chunk(std::uint32_t frame, std::uint32_t steps) const {
    std::vector<py::ssize_t> shape = batch_shape_;
    shape.insert(shape.begin() + 1, static_cast<py::ssize_t>(steps));
    py::object all = fresh(shape);
    char* to = array_of(all.ptr())->data;
    for (std::size_t env = 0; env < static_cast<std::size_t>(shape[0]); ++env) {
        for (std::uint32_t k = 0; k < steps; ++k, to += row_bytes_) {
            std::memcpy(to, row(frame + k, env), row_bytes_);
        }
    }
    return all;
}

py::array Leaf::view_all(std::uint32_t frame) const {
    return py::array(dtype_, batch_shape_, row(frame, 0), array_);
}

}  // namespace pysampler::bindings
