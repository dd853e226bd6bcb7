// Arrays that are lent: views of shared memory, which is written again once no view is left.
#pragma once

#include <pybind11/numpy.h>

#include <memory>

#include "loan.h"

namespace pysampler::bindings {

namespace py = pybind11;

class Lent {
 public:
    // Lends the memory of an array. A fork needs no copy of what is `of_this_process` alone.
    explicit Lent(const py::array& array, bool of_this_process = false);
    Lent(Lent&&) = default;
    Lent& operator=(Lent&&) = delete;
    ~Lent();

    // A view of all of it, which may be lent on: views of that view count too.
    py::object view() const;
    // Whether a view is left, here or in a fork.
    bool held() const;

 private:
    struct Rows;

    std::shared_ptr<Rows> state_;
    py::object rows_;  // what each view refers to
};

}  // namespace pysampler::bindings
