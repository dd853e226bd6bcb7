// pysampler._core: the primitives of csrc/ as Python classes, and the loops that run in C++ for
// speed. Private: users import pysampler and pysampler.sync.
#include <pybind11/pybind11.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>

#include "byte_ring.h"
#include "process.h"
#include "segment.h"
#include "support.h"

namespace pysampler::bindings {
namespace {

// Fails now with a clear message rather than later with an obscure one.
void check_system() {
    const int pidfd = open_pidfd(getpid());
    if (pidfd < 0) {
        throw py::import_error(
            std::string("pysampler needs Linux 5.3 or newer with pidfd_open allowed; here "
                        "pidfd_open failed: ") +
            std::strerror(errno));
    }
    close(pidfd);
}

void translate(std::exception_ptr error) {
    const auto set = [](PyObject* type, const char* what) { PyErr_SetString(type, what); };
    try {
        std::rethrow_exception(std::move(error));
    } catch (const OutOfMemory& e) {
        set(PyExc_MemoryError, e.what());
    } catch (const std::system_error& e) {
        const py::object value = py::reinterpret_borrow<py::object>(PyExc_OSError)(
            e.code().value(), std::string(e.what()));
        PyErr_SetObject(PyExc_OSError, value.ptr());
    } catch (const LayoutError& e) {
        set(py::module_::import("pysampler.errors").attr("LayoutError").ptr(), e.what());
    } catch (const CorruptRing& e) {
        set(py::module_::import("pysampler.errors").attr("LayoutError").ptr(), e.what());
    }
}

}  // namespace

PYBIND11_MODULE(_core_of_main_interpreter, m, py::mod_gil_not_used()) {
    check_system();
    py::register_exception_translator(translate);
    register_wait(m);
    register_segment(m);
    register_watch(m);
    register_doorbell(m);
    register_flag(m);
    register_ring(m);
    register_shared_ring(m);
    register_byte_ring(m);
    register_board(m);
    register_trace(m);
    register_meter(m);
    register_pool(m);
    register_guard(m);
    register_process(m);
    register_parcel(m);
    register_infos(m);
    register_frame_block(m);
    register_env_block(m);
    register_batch_block(m);
    register_lent(m);
    register_frame_access(m);
    register_call(m);
    register_python_block(m);
    register_simulations(m);
    register_batch_rows(m);
    register_classic(m);
    register_draws(m);
    register_tally(m);
    register_policy_rows(m);
}

}  // namespace pysampler::bindings

// Python calls this to import the module. In a subinterpreter, pybind11 would wait forever.
// NOLINTNEXTLINE(bugprone-reserved-identifier): Python chose its name
extern "C" PYBIND11_EXPORT PyObject* PyInit__core() {
    if (PyInterpreterState_Get() != PyInterpreterState_Main()) {
        PyErr_SetString(PyExc_ImportError,
                        "cannot import pysampler in a subinterpreter: expected the main one");
        return nullptr;
    }
    return pysampler::bindings::PyInit__core_of_main_interpreter();
}
