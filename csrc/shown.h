// A number that one thread at a time changes, and any thread may read.
#pragma once

#include <atomic>

namespace pysampler {

// Relaxed throughout: nothing else is read because of it. A change costs what that of a plain
// number does.
template <class T>
class Shown {
 public:
    Shown(T value = {}) : value_(value) {}
    Shown(const Shown& other) : value_(T(other)) {}
    Shown& operator=(const Shown& other) { return *this = T(other); }
    Shown& operator=(T value) {
        value_.store(value, std::memory_order_relaxed);
        return *this;
    }
    operator T() const { return value_.load(std::memory_order_relaxed); }
    Shown& operator+=(T by) { return *this = static_cast<T>(*this + by); }
    Shown& operator-=(T by) { return *this = static_cast<T>(*this - by); }

 private:
    std::atomic<T> value_;
};

}  // namespace pysampler
