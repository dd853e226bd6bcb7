// Arrays on loan: views of shared memory that is written again once no view is left.
#pragma once

#include <pybind11/numpy.h>

#include <memory>

#include "loan.h"

namespace pysampler::bindings {

namespace py = pybind11;

// Owner: the thread that lends, in a guard; any thread may have views.
class Lent {
 public:
    // Lends the memory of an array. `of_this_process`: it is private, so a fork needs no copy.
    explicit Lent(const py::array& array, bool of_this_process = false);
    Lent(Lent&&) = default;
    Lent& operator=(Lent&&) = delete;
    ~Lent();

    // A view of the whole array. Views of that view count as well.
    py::object view() const;
    // Whether a view is left, here or in a fork.
    bool held() const;

 private:
    struct Rows;

    std::shared_ptr<Rows> state_;
    py::object rows_;  // each view refers to it
};

}  // namespace pysampler::bindings
