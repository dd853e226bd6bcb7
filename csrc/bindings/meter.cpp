#include "meter.h"

#include <pybind11/numpy.h>

#include "support.h"

namespace pysampler::bindings {
namespace {

// An array of meters: rows of bytes, each one meter.
template <class T>
T* meters(const py::array_t<std::uint8_t>& rows) {
    if (rows.ndim() != 2 || rows.shape(1) != sizeof(T) || rows.strides(0) != sizeof(T)) {
        throw py::value_error("cannot make meter: expected rows of " + std::to_string(sizeof(T)) +
                              " bytes");
    }
    return reinterpret_cast<T*>(const_cast<std::uint8_t*>(rows.data()));
}

using Envs = py::array_t<std::int32_t, py::array::c_style | py::array::forcecast>;

template <class Count>
void each(const Envs& envs, Count&& count) {
    for (py::ssize_t i = 0; i < envs.size(); ++i) count(static_cast<std::size_t>(envs.data()[i]));
}

}  // namespace

void register_meter(py::module_& m) {
    Class<Meter, std::shared_ptr<Meter>> meter(m, "Meter");
    meter
        .def(py::init([](const py::array_t<std::uint8_t>& envs,
                         const py::array_t<std::uint8_t>& workers, std::size_t index) {
                 if (static_cast<py::ssize_t>(index) >= workers.shape(0)) {
                     throw py::index_error("cannot make meter: worker " + std::to_string(index) +
                                           ", expected one below " +
                                           std::to_string(workers.shape(0)));
                 }
                 return std::make_shared<Meter>(meters<EnvMeter>(envs),
                                                meters<WorkerMeter>(workers) + index);
             }),
             py::arg("envs"), py::arg("workers"), py::arg("index"), py::keep_alive<1, 2>(),
             py::keep_alive<1, 3>())
        .def(
            "at", [](Meter& self, std::int64_t env) { self.at(env, now_ns()); }, py::arg("env"),
            "Attribute time to this env from now on.")
        .def(
            "stepped",
            [](Meter& self, const Envs& envs, std::int64_t ns) {
                each(envs, [&](std::size_t env) { self.stepped(env, ns); });
            },
            py::arg("envs"), py::arg("ns"), "Count a step of `ns` for each of these envs.")
        .def(
            "were_reset",
            [](Meter& self, const Envs& envs, std::int64_t ns) {
                each(envs, [&](std::size_t env) { self.was_reset(env, ns); });
            },
            py::arg("envs"), py::arg("ns"), "Count a reset of `ns` for each of these envs.")
        .def(
            "idle", [](Meter& self) { self.idle(now_ns()); },
            "Attribute time to no env from now on.");
    meter.def("trace_to", &Meter::trace_to, py::arg("track"),
              "Trace to this track from now on; None turns tracing off.");
    meter.def_property_readonly("track", &Meter::track, "The track it traces to, or None.");
    meter.attr("BUCKETS") = Durations::kBuckets;
    meter.attr("FIRST_BUCKET") = Durations::kFirst;
}

}  // namespace pysampler::bindings
