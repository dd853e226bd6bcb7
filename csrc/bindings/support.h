// Included by every binding: a file that names a class of ours must see the casters of classes.h.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "arguments.h"
#include "classes.h"
#include "handle.h"
#include "released.h"

namespace pysampler::bindings {

// Called by module.cpp; each is defined in the file of that name.
void register_wait(py::module_&);
void register_segment(py::module_&);
void register_flag(py::module_&);
void register_doorbell(py::module_&);
void register_ring(py::module_&);
void register_shared_ring(py::module_&);
void register_byte_ring(py::module_&);
void register_board(py::module_&);
void register_watch(py::module_&);
void register_pool(py::module_&);
void register_guard(py::module_&);
void register_process(py::module_&);
void register_parcel(py::module_&);
void register_infos(py::module_&);
void register_trace(py::module_&);
void register_meter(py::module_&);
void register_frame_block(py::module_&);
void register_env_block(py::module_&);
void register_batch_block(py::module_&);
void register_lent(py::module_&);
void register_frame_access(py::module_&);
void register_call(py::module_&);
void register_python_block(py::module_&);
void register_simulations(py::module_&);
void register_batch_rows(py::module_&);
void register_classic(py::module_&);
void register_draws(py::module_&);
void register_tally(py::module_&);
void register_policy_rows(py::module_&);

}  // namespace pysampler::bindings
