#include "number.h"

#include <array>
#include <cmath>
#include <cstring>
#include <type_traits>

namespace pysampler::bindings {
namespace {

namespace py = pybind11;
using Npy = py::detail::npy_api;

// Up to here a double represents every whole number.
constexpr std::int64_t kExact = std::int64_t{1} << 53;

// Calls use(T()) with the C type of a numpy type; returns false for types that are not plain
// numbers. A bool is a byte, 0 or 1.
template <class Use>
bool with_type(int type, Use&& use) {
    switch (type) {
        case Npy::NPY_BOOL_:
        case Npy::NPY_UBYTE_:
            return use(static_cast<unsigned char>(0));
        case Npy::NPY_BYTE_:
            return use(static_cast<signed char>(0));
        case Npy::NPY_SHORT_:
            return use(static_cast<short>(0));
        case Npy::NPY_USHORT_:
            return use(static_cast<unsigned short>(0));
        case Npy::NPY_INT_:
            return use(0);
        case Npy::NPY_UINT_:
            return use(0U);
        case Npy::NPY_LONG_:
            return use(0L);
        case Npy::NPY_ULONG_:
            return use(0UL);
        case Npy::NPY_LONGLONG_:
            return use(0LL);
        case Npy::NPY_ULONGLONG_:
            return use(0ULL);
        case Npy::NPY_FLOAT_:
            return use(0.0F);
        case Npy::NPY_DOUBLE_:
            return use(0.0);
        default:
            return false;
    }
}

// numpy's scalars, most frequent first.
constexpr int kScalars[] = {Npy::NPY_FLOAT_,  Npy::NPY_LONG_,     Npy::NPY_BOOL_,
                            Npy::NPY_INT_,    Npy::NPY_UBYTE_,    Npy::NPY_SHORT_,
                            Npy::NPY_BYTE_,   Npy::NPY_UINT_,     Npy::NPY_ULONG_,
                            Npy::NPY_USHORT_, Npy::NPY_LONGLONG_, Npy::NPY_DOUBLE_};

// The numpy type of a scalar; -1 for any other object.
int scalar_type_of(PyObject* value) {
    static const auto types = [] {
        std::array<PyObject*, std::size(kScalars)> all{};
        for (std::size_t i = 0; i < all.size(); ++i) {
            all[i] = Npy::get().PyArray_TypeObjectFromType_(kScalars[i]);  // kept forever
            if (all[i] == nullptr) throw py::error_already_set();
        }
        return all;
    }();
    for (std::size_t i = 0; i < types.size(); ++i) {
        if (reinterpret_cast<PyObject*>(Py_TYPE(value)) == types[i]) return kScalars[i];
    }
    return -1;
}

template <class To, class From>
bool cast(From from, To& to) {
    if constexpr (std::is_integral_v<To> && !std::is_integral_v<From>) {
        return false;  // out-of-range conversions differ between machines
    } else {
        to = static_cast<To>(from);  // NOLINT(bugprone-signed-char-misuse): numbers, all of them
        if constexpr (std::is_floating_point_v<From>) {
            return !std::isinf(to) || std::isinf(from);
        } else if constexpr (std::is_integral_v<To>) {
            return static_cast<From>(to) == from && (to < 0) == (from < 0);
        } else {
            return true;
        }
    }
}

}  // namespace

std::optional<Number> number_of(PyObject* value) {
    if (PyFloat_Check(value)) return Number{false, 0, PyFloat_AS_DOUBLE(value)};
    if (PyLong_CheckExact(value)) {
        int overflow = 0;
        const long long integer = PyLong_AsLongLongAndOverflow(value, &overflow);
        if (overflow != 0) return std::nullopt;
        return Number{true, integer, 0};
    }
    const int type = scalar_type_of(value);
    alignas(8) std::byte bytes[8];
    if (type < 0) return std::nullopt;
    Npy::get().PyArray_ScalarAsCtype_(value, bytes);
    Number number{};
    const bool known = with_type(type, [&](auto element) {
        std::memcpy(&element, bytes, sizeof element);
        number.whole = std::is_integral_v<decltype(element)>;
        if (!number.whole) {
            number.real = static_cast<double>(element);
            return true;
        }
        // NOLINTNEXTLINE(bugprone-signed-char-misuse): a number, even with eight bits
        number.integer = static_cast<std::int64_t>(element);
        return std::is_signed_v<decltype(element)> || number.integer >= 0;
    });
    return known ? std::optional(number) : std::nullopt;
}

bool put_number(const Number& number, int type, void* to) {
    if (type == Npy::NPY_BOOL_) return false;
    return with_type(type, [&](auto element) {
        if (number.whole && std::is_floating_point_v<decltype(element)> &&
            (number.integer > kExact || number.integer < -kExact)) {
            return false;
        }
        if (!(number.whole ? cast(number.integer, element) : cast(number.real, element))) {
            return false;
        }
        std::memcpy(to, &element, sizeof element);
        return true;
    });
}

bool cast_elements(int from_type, const void* from, int to_type, void* to, std::size_t count) {
    if (to_type == Npy::NPY_BOOL_) return false;
    return with_type(from_type, [&]<class From>(From) {
        return with_type(to_type, [&]<class To>(To) {
            if constexpr (std::is_integral_v<To> && !std::is_integral_v<From>) {
                return false;
            } else {
                const auto* source = static_cast<const From*>(from);
                auto* target = static_cast<To*>(to);
                bool fits = true;
                for (std::size_t i = 0; i < count; ++i) fits &= cast(source[i], target[i]);
                return fits;
            }
        });
    });
}

}  // namespace pysampler::bindings
