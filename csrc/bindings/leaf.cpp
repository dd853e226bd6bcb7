#include "leaf.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <numeric>

namespace pysampler::bindings {
namespace {

using Npy = py::detail::npy_api;

const Npy& npy() { return Npy::get(); }

std::string shape_text(const py::ssize_t* shape, std::size_t count) {
    std::string text = "(";
    for (std::size_t i = 0; i < count; ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
    return text + (count == 1 ? ",)" : ")");
}

}  // namespace

py::array over_frames(const py::dtype& dtype, const std::vector<py::ssize_t>& shape,
                      py::ssize_t frame_bytes, const void* data, const py::object& owner) {
    std::vector<py::ssize_t> strides(shape.size());
    py::ssize_t stride = dtype.itemsize();
    for (std::size_t i = shape.size(); i-- > 1;) {
        strides[i] = stride;
        stride *= shape[i];
    }
    if (stride > frame_bytes) throw py::value_error("an array does not fit its frame");
    strides[0] = frame_bytes;
    return {dtype, shape, strides, data, owner};
}

Leaf::Leaf(const py::array& array)
    : array_(array),
      base_(static_cast<std::byte*>(const_cast<void*>(array.data()))),
      frame_bytes_(static_cast<std::size_t>(array.strides(0))),
      row_bytes_(static_cast<std::size_t>(
          std::accumulate(array.shape() + 2, array.shape() + array.ndim(), array.itemsize(),
                          std::multiplies<py::ssize_t>()))),
      dtype_(array.dtype()),
      type_num_(dtype_.num()),
      scalar_type_(reinterpret_cast<PyTypeObject*>(
          checked(npy().PyArray_TypeObjectFromType_(type_num_)).release().ptr())),
      shape_(array.shape() + 2, array.shape() + array.ndim()),
      batch_shape_(array.shape() + 1, array.shape() + array.ndim()) {}

// An array of this dtype, in one piece.
bool Leaf::is_mine(PyObject* value) const {
    if (!exact_array(value)) return false;
    const auto* proxy = array_of(value);
    return (proxy->descr == dtype_.ptr() ||
            npy().PyArray_EquivTypes_(proxy->descr, dtype_.ptr())) &&
           (proxy->flags & Npy::NPY_ARRAY_C_CONTIGUOUS_);
}

bool Leaf::matches(PyObject* value) const {
    if (!is_mine(value)) return false;
    const auto* proxy = array_of(value);
    return static_cast<std::size_t>(proxy->nd) == shape_.size() &&
           std::equal(shape_.begin(), shape_.end(), proxy->dimensions);
}

bool Leaf::matches_all(PyObject* value, std::size_t envs) const {
    if (!is_mine(value)) return false;
    const auto* proxy = array_of(value);
    return static_cast<std::size_t>(proxy->nd) == shape_.size() + 1 &&
           static_cast<std::size_t>(proxy->dimensions[0]) == envs &&
           std::equal(shape_.begin(), shape_.end(), proxy->dimensions + 1);
}

bool Leaf::store(std::uint32_t frame, std::size_t env, PyObject* value) const {
    std::byte* to = row(frame, env);
    if (!shape_.empty()) {
        const bool same = matches(value);
        if (same) {
            std::memcpy(to, array_of(value)->data, row_bytes_);
        } else {
            convert(to, value);
        }
        return same;
    }
    if (Py_TYPE(value) == scalar_type_) {
        npy().PyArray_ScalarAsCtype_(value, to);
        return true;
    }
    if (!store_number(to, value)) convert(to, value);
    return false;
}

// Python's own numbers where nothing can be lost on the way.
bool Leaf::store_number(std::byte* to, PyObject* value) const {
    const auto put = [to](auto number) { std::memcpy(to, &number, sizeof number); };
    switch (type_num_) {
        case Npy::NPY_INT64_: {
            if (!PyLong_CheckExact(value)) return false;
            int overflow = 0;
            put(static_cast<std::int64_t>(PyLong_AsLongLongAndOverflow(value, &overflow)));
            return overflow == 0;
        }
        case Npy::NPY_DOUBLE_:
            if (!PyFloat_Check(value)) return false;
            put(PyFloat_AS_DOUBLE(value));
            return true;
        case Npy::NPY_FLOAT_:
            if (!PyFloat_Check(value)) return false;
            put(static_cast<float>(PyFloat_AS_DOUBLE(value)));
            return true;
        case Npy::NPY_BOOL_:
            if (!PyBool_Check(value)) return false;
            put(value == Py_True);
            return true;
        default:
            return false;
    }
}

void Leaf::convert(std::byte* to, PyObject* value) const {
    py::object from = checked(npy().PyArray_FromAny_(value, nullptr, 0, 0, 0, nullptr));
    const auto* proxy = array_of(from.ptr());
    const auto given = static_cast<std::size_t>(proxy->nd);
    if (given != shape_.size() || !std::equal(shape_.begin(), shape_.end(), proxy->dimensions)) {
        py::ssize_t size = 1, wanted = 1;
        for (std::size_t i = 0; i < given; ++i) size *= proxy->dimensions[i];
        for (const py::ssize_t n : shape_) wanted *= n;
        if (size != wanted) {
            throw py::value_error("shape " + shape_text(proxy->dimensions, given) + ", expected " +
                                  shape_text(shape_.data(), shape_.size()));
        }
        from = from.attr("reshape")(shape_);
    }
    const py::array row(dtype_, shape_, to, py::none());  // a view: it has a base
    if (npy().PyArray_CopyInto_(row.ptr(), from.ptr()) != 0) throw py::error_already_set();
}

py::object Leaf::fresh(const std::vector<py::ssize_t>& shape) const {
    return checked(npy().PyArray_NewFromDescr_(npy().PyArray_Type_, dtype_.inc_ref().ptr(),
                                               static_cast<int>(shape.size()), shape.data(),
                                               nullptr, nullptr, 0, nullptr));
}

py::object Leaf::load(std::uint32_t frame, std::size_t env) const {
    std::byte* from = row(frame, env);
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
        std::memcpy(to, row(frame, first), count * row_bytes_);
        to += count * row_bytes_;
    }
    // A worker may have written anything; a bool that is neither 0 nor 1 is trouble.
    if (type_num_ == Npy::NPY_BOOL_) {
        std::transform(begin, to, begin, [](char one) { return one != 0; });
    }
    for (std::size_t at = 0; mask != nullptr && at < batch.envs(); ++at) {
        if (!mask[at]) std::memset(begin + at * row_bytes_, 0, row_bytes_);
    }
    return all;
}

py::object Leaf::rows_to_lend(std::uint32_t frame) const {
    // A view refers to the array that owns the memory, past all views between; a base that is no
    // array ends that chain here.
    const py::capsule base(new py::array(array_),
                           [](void* p) { delete static_cast<py::array*>(p); });
    return py::array(dtype_, batch_shape_, row(frame, 0), base);
}

py::object Leaf::view_of(const py::object& rows) const {
    return checked(npy().PyArray_View_(rows.ptr(), nullptr, nullptr));
}

py::object Leaf::view_all(std::uint32_t frame) const {
    return py::array(dtype_, batch_shape_, row(frame, 0), array_);
}

}  // namespace pysampler::bindings
