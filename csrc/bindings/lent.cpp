#include "lent.h"

#include <algorithm>
#include <atomic>

#include "support.h"

namespace pysampler::bindings {
namespace {

// The bytes from the first element of an array to its last one.
std::size_t extent(const py::array& array) {
    if (array.size() == 0) return 0;
    py::ssize_t last = array.itemsize();
    for (py::ssize_t i = 0; i < array.ndim(); ++i) {
        if (array.strides(i) < 0) throw py::value_error("cannot lend array: it runs backwards");
        last += (array.shape(i) - 1) * array.strides(i);
    }
    return static_cast<std::size_t>(last);
}

}  // namespace

// Outlives the Lent as long as a view is left.
struct Lent::Rows : Loan {
    Rows(const py::array& array, std::byte* at, std::size_t bytes)
        : Loan(at, bytes, [](const Loan& loan) { return static_cast<const Rows&>(loan).held(); }),
          owner(array) {}

    bool held() const { return views != nullptr && references() > (kept ? 1 : 0); }

    // Without Python's lock, an object has two counts: of its own thread, and of all others. While
    // a view moves from one to the other, a first look may miss it, a second finds it.
    Py_ssize_t references() const {
        const Py_ssize_t first = Py_REFCNT(views);
        return std::max(first, Py_REFCNT(views));
    }

    py::array owner;               // of the memory
    PyObject* views = nullptr;     // Lent::rows_; borrowed, since it owns this
    std::atomic<bool> kept{true};  // a Lent refers to it too
};

Lent::Lent(const py::array& array, bool of_this_process) {
    auto* const at = static_cast<std::byte*>(const_cast<void*>(array.data()));
    auto rows = std::make_shared<Rows>(array, at, of_this_process ? 0 : extent(array));
    // A numpy view refers to the array that owns the memory, skipping all views in between. With a
    // capsule as the owner it refers to rows_, the topmost array.
    const py::capsule base(new std::shared_ptr<Rows>(rows),
                           [](void* p) { delete static_cast<std::shared_ptr<Rows>*>(p); });
    const std::vector<py::ssize_t> shape(array.shape(), array.shape() + array.ndim());
    const std::vector<py::ssize_t> strides(array.strides(), array.strides() + array.ndim());
    rows_ = py::array(array.dtype(), shape, strides, at, base);
    rows->views = rows_.ptr();
    state_ = std::move(rows);
}

Lent::~Lent() {
    if (state_) state_->kept = false;
}

py::object Lent::view() const {
    const auto& npy = py::detail::npy_api::get();
    PyObject* const made = npy.PyArray_View_(rows_.ptr(), nullptr, nullptr);
    if (made == nullptr) throw py::error_already_set();
    return py::reinterpret_steal<py::object>(made);
}

bool Lent::held() const { return state_->held() || state_->shared(); }

template <>
inline constexpr bool is_bound<Lent> = true;

void register_lent(py::module_& m) {
    Class<Lent>(m, "Lent",
                "Memory that is lent as arrays and written again once none of them is left.\n\n"
                "A fork of this process gets its own copy of lent memory that is held.")
        .def(py::init<const py::array&, bool>(), py::arg("array"),
             py::arg("of_this_process") = false)
        .def("view", &Lent::view, "Return a view of the array.")
        .def_property_readonly("held", &Lent::held,
                               "Whether a view of it is left, here or in a fork.");
}

}  // namespace pysampler::bindings
