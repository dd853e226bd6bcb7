#include "simulations.h"

#include <dlfcn.h>

#include <array>
#include <cstring>
#include <stdexcept>

namespace pysampler {

struct Simulations::Library {
    // A function of any type.
    struct Symbol {
        template <class Function>
        operator Function*() const {  // NOLINT(google-explicit-constructor)
            return reinterpret_cast<Function*>(found);
        }
        void* found;
    };

    explicit Library(const std::string& path)
        : handle(dlopen(path.c_str(), RTLD_NOW | RTLD_NOLOAD), dlclose) {
        expect(handle != nullptr, "library not loaded: ", path);
    }

    Symbol symbol(const char* name) const {
        void* found = dlsym(handle.get(), name);
        expect(found != nullptr, "this MuJoCo has no function ", name);
        return {found};
    }
    static void expect(bool is_true, std::string message, const std::string& name) {
        if (!is_true) throw std::runtime_error(message.append(name));
    }

    std::unique_ptr<void, int (*)(void*)> handle;
    void (*mj_step)(const void*, void*) = symbol("mj_step");
    void (*mj_forward)(const void*, void*) = symbol("mj_forward");
    void (*mj_resetData)(const void*, void*) = symbol("mj_resetData");
    void (*mj_rnePostConstraint)(const void*, void*) = symbol("mj_rnePostConstraint");
    void (*mj_getState)(const void*, const void*, double*, unsigned) = symbol("mj_getState");
    void (*mj_setState)(const void*, void*, const double*, unsigned) = symbol("mj_setState");
    void (*mjb_defaultConfig)(void*) = symbol("mjb_defaultConfig");
    void* (*mjb_makeBatch)(const void*, int, const void*, char*, int) = symbol("mjb_makeBatch");
    void (*mjb_deleteBatch)(void*) = symbol("mjb_deleteBatch");
    int (*mjb_nthread)(const void*) = symbol("mjb_nthread");
    int (*mjb_nstate)(const void*) = symbol("mjb_nstate");
    double* (*mjb_state)(void*) = symbol("mjb_state");
    void* (*mjb_output)(void*, const char*, int*, int*) = symbol("mjb_output");
    int (*mjb_step)(void*, const int*, int, int, int) = symbol("mjb_step");
    int (*mjb_forward)(void*, const int*, int, int) = symbol("mjb_forward");
    int (*mjb_apply)(void*, const int*, int, Each, void*, int) = symbol("mjb_apply");
    const int* (*mjb_status)(const void*) = symbol("mjb_status");
    const char* (*mjb_error)(const void*, int) = symbol("mjb_error");

    unsigned state = 0;
    int substeps = 0;
    std::vector<double> row;  // of the simulation that begins
};

Simulations::Simulations(const std::string& library, const void* model, int count, unsigned state)
    : library_(std::make_unique<Library>(library)), count_(count) {
    library_->state = state;
    // An mjBatchConfig begins with the number of threads. Leaves room for fields to come.
    alignas(16) std::array<std::byte, 256> config{};
    library_->mjb_defaultConfig(config.data());
    const int threads = 1;
    std::memcpy(config.data(), &threads, sizeof(threads));
    std::array<char, 512> error{};
    batch_ = library_->mjb_makeBatch(model, count, config.data(), error.data(),
                                     static_cast<int>(error.size()));
    if (batch_ == nullptr) throw std::runtime_error(error.data());
    if (library_->mjb_nthread(batch_) != threads) {
        library_->mjb_deleteBatch(batch_);
        throw std::runtime_error("this MuJoCo makes batches of more than one thread");
    }
    row_size_ = library_->mjb_nstate(batch_);
    rows_ = library_->mjb_state(batch_);
    library_->row.resize(static_cast<std::size_t>(row_size_));
}

Simulations::~Simulations() { library_->mjb_deleteBatch(batch_); }

Simulations::Field Simulations::field(const std::string& name) {
    int size = 0, bytes = 0;
    void* data = library_->mjb_output(batch_, name.c_str(), &size, &bytes);
    copies_fields_ = copies_fields_ || data != nullptr;
    return {data, static_cast<std::size_t>(size) * static_cast<std::size_t>(bytes)};
}

int Simulations::step(const int* ids, int n, int substeps, bool forces) {
    if (!forces) return library_->mjb_step(batch_, ids, n, substeps, 0);
    library_->substeps = substeps;
    const Each each = [](const void* model, void* data, int, void* argument) {
        const auto& library = *static_cast<const Library*>(argument);
        for (int k = 0; k < library.substeps; ++k) library.mj_step(model, data);
        library.mj_rnePostConstraint(model, data);
    };
    return apply(ids, n, each);
}

// mjb_apply does not copy fields out. mjb_forward with no stage does, from the mjData as the call
// before left it: so each simulation gets both calls before the next one.
int Simulations::apply(const int* ids, int n, Each each) {
    if (!copies_fields_) return library_->mjb_apply(batch_, ids, n, each, library_.get(), 1);
    int failures = 0;
    for (int k = 0; k < n; ++k) {
        const int simulation = ids == nullptr ? k : ids[k];
        if (library_->mjb_apply(batch_, &simulation, 1, each, library_.get(), 1) != 0) {
            ++failures;
        } else {
            failures += library_->mjb_forward(batch_, &simulation, 1, 0);
        }
    }
    return failures;
}

int Simulations::begin(const int* ids, int n) {
    // The mjData still holds derived fields of other simulations.
    const Each each = [](const void* model, void* data, int, void* argument) {
        auto& library = *static_cast<Library*>(argument);
        library.mj_getState(model, data, library.row.data(), library.state);
        library.mj_resetData(model, data);
        library.mj_setState(model, data, library.row.data(), library.state);
        library.mj_forward(model, data);
    };
    return apply(ids, n, each);
}

bool Simulations::failed(int simulation) const {
    return library_->mjb_status(batch_)[simulation] != 0;
}

std::string Simulations::error(int simulation) const {
    return library_->mjb_error(batch_, simulation);
}

}  // namespace pysampler
