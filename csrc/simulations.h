// Many simulations of one MuJoCo model in one thread, in a batch (mjb_...) of the user's MuJoCo
// library. Its functions are looked up by name in the loaded library, so that nothing here depends
// on MuJoCo's headers or the layout of its structs.
//
// A simulation is a row of numbers, its state. A call loads the rows of some simulations, computes,
// copies out the fields that were asked for, and saves the rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace pysampler {

class Simulations {
 public:
    // `library` is the path of the library, which must be loaded; `model` the address of one of its
    // mjModels, which is copied; `state` the bits for a whole state (mjSTATE_INTEGRATION).
    // Throws std::runtime_error if the library lacks a function or cannot make the batch.
    Simulations(const std::string& library, const void* model, int count, unsigned state);
    ~Simulations();
    Simulations& operator=(Simulations&&) = delete;  // nor copies

    int count() const { return count_; }
    int row_size() const { return row_size_; }
    double* rows() const { return rows_; }

    struct Field {
        void* data = nullptr;  // [count, bytes]; nullptr if mjData has no such field
        std::size_t bytes = 0;
    };
    // Copies this field of mjData out after every call from now on.
    Field field(const std::string& name);

    // Each of these returns how many simulations failed; error() says why. `ids` are n indices of
    // simulations, or nullptr for all.

    // Steps `substeps` times; `forces` also computes the forces that only sensors would need.
    int step(const int* ids, int n, int substeps, bool forces);
    // Computes everything from the state, as after mj_resetData.
    int begin(const int* ids, int n);

    bool failed(int simulation) const;
    std::string error(int simulation) const;

 private:
    struct Library;
    // The callback of mjb_apply, as mjbatch.h declares it.
    using Each = void (*)(const void* model, void* data, int simulation, void* argument);

    int apply(const int* ids, int n, Each each);

    std::unique_ptr<Library> library_;
    void* batch_ = nullptr;
    int count_;
    int row_size_ = 0;
    bool copies_fields_ = false;
    double* rows_ = nullptr;
};

}  // namespace pysampler
