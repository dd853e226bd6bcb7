#include "simulations.h"

#include <dlfcn.h>

#include <array>
#include <cstring>
#include <stdexcept>

namespace pysampler {

struct Simulations::Library {
    explicit Library(const std::string& path)
        : handle(dlopen(path.c_str(), RTLD_NOW | RTLD_NOLOAD)) {
        if (handle == nullptr) {
            std::string message = "library not loaded: ";
            throw std::runtime_error(message.append(path));
        }
        try {
            look_up(mj_step, "mj_step");
            look_up(mj_forward, "mj_forward");
            look_up(mj_resetData, "mj_resetData");
            look_up(mj_rnePostConstraint, "mj_rnePostConstraint");
            look_up(mj_getState, "mj_getState");
            look_up(mj_setState, "mj_setState");
            look_up(mjb_defaultConfig, "mjb_defaultConfig");
            look_up(mjb_makeBatch, "mjb_makeBatch");
            look_up(mjb_deleteBatch, "mjb_deleteBatch");
            look_up(mjb_nthread, "mjb_nthread");
            look_up(mjb_nstate, "mjb_nstate");
            look_up(mjb_state, "mjb_state");
            look_up(mjb_output, "mjb_output");
            look_up(mjb_step, "mjb_step");
            look_up(mjb_forward, "mjb_forward");
            look_up(mjb_apply, "mjb_apply");
            look_up(mjb_status, "mjb_status");
            look_up(mjb_error, "mjb_error");
        } catch (...) {
            dlclose(handle);
            throw;
        }
    }
    ~Library() { dlclose(handle); }
    Library(const Library&) = delete;
    Library& operator=(const Library&) = delete;

    template <class Function>
    void look_up(Function& function, const char* name) {
        void* found = dlsym(handle, name);
        if (found == nullptr) {
            std::string message = "this MuJoCo has no function ";
            throw std::runtime_error(message.append(name));
        }
        function = reinterpret_cast<Function>(found);
    }

    void* handle;
    void (*mj_step)(const void*, void*);
    void (*mj_forward)(const void*, void*);
    void (*mj_resetData)(const void*, void*);
    void (*mj_rnePostConstraint)(const void*, void*);
    void (*mj_getState)(const void*, const void*, double*, unsigned);
    void (*mj_setState)(const void*, void*, const double*, unsigned);
    void (*mjb_defaultConfig)(void*);
    void* (*mjb_makeBatch)(const void*, int, const void*, char*, int);
    void (*mjb_deleteBatch)(void*);
    int (*mjb_nthread)(const void*);
    int (*mjb_nstate)(const void*);
    double* (*mjb_state)(void*);
    void* (*mjb_output)(void*, const char*, int*, int*);
    int (*mjb_step)(void*, const int*, int, int, int);
    int (*mjb_forward)(void*, const int*, int, int);
    int (*mjb_apply)(void*, const int*, int, Each, void*, int);
    const int* (*mjb_status)(const void*);
    const char* (*mjb_error)(const void*, int);

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
