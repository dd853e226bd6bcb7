// MuJoCo simulations whose rows and fields are NumPy arrays.
#include "simulations.h"

#include <optional>

#include "released.h"
#include "support.h"

namespace pysampler::bindings {
namespace {

using Ids = py::array_t<std::int32_t, py::array::c_style>;

// Owner: that of the block which steps them.
class PySimulations : public Simulations {
 public:
    PySimulations(const std::string& library, std::uintptr_t model, int count, unsigned state)
        : Simulations(library,
                      reinterpret_cast<const void*>(model),  // NOLINT(performance-no-int-to-ptr)
                      count, state) {}

    int step_some(const std::optional<Ids>& ids, int substeps, bool forces) {
        if (substeps < 1) throw py::value_error("cannot step simulations: no substeps");
        return with(ids, [&](const int* first, int n) { return step(first, n, substeps, forces); });
    }

    int begin_some(const std::optional<Ids>& ids) {
        return with(ids, [&](const int* first, int n) { return begin(first, n); });
    }

    std::string error_of(int simulation) const {
        check(simulation);
        return failed(simulation) ? error(simulation) : std::string();
    }

 private:
    void check(int simulation) const {
        if (simulation < 0 || simulation >= count()) {
            throw py::index_error("simulation " + std::to_string(simulation) +
                                  ", expected one below " + std::to_string(count()));
        }
    }

    template <class Call>
    int with(const std::optional<Ids>& ids, Call&& call) {
        if (!ids) {
            const Released released;
            return call(nullptr, count());
        }
        if (ids->ndim() != 1) throw py::value_error("ids of simulations: expected one axis");
        for (py::ssize_t i = 0; i < ids->size(); ++i) {
            check(ids->at(i));
            if (i > 0 && ids->at(i) <= ids->at(i - 1)) {  // MuJoCo would abort the process
                throw py::value_error("ids of simulations: expected increasing numbers");
            }
        }
        const Released released;
        return call(ids->data(), static_cast<int>(ids->size()));
    }
};

}  // namespace

template <>
inline constexpr bool is_bound<PySimulations> = true;

void register_simulations(py::module_& m) {
    Class<PySimulations>(m, "Simulations")
        .def(py::init<const std::string&, std::uintptr_t, int, unsigned>(), py::arg("library"),
             py::arg("model"), py::arg("count"), py::arg("state"))
        .def(
            "rows",
            [](const py::object& self) {
                const auto& simulations = self.cast<const PySimulations&>();
                return py::array_t<double>({simulations.count(), simulations.row_size()},
                                           simulations.rows(), self);
            },
            "Return a view of the states, one row for each simulation.")
        .def(
            "field",
            [](const py::object& self, const std::string& name) -> py::object {
                auto& simulations = self.cast<PySimulations&>();
                const auto found = simulations.field(name);
                if (found.data == nullptr) return py::none();
                return py::array_t<std::uint8_t>({static_cast<py::ssize_t>(simulations.count()),
                                                  static_cast<py::ssize_t>(found.bytes)},
                                                 static_cast<std::uint8_t*>(found.data), self);
            },
            py::arg("name"),
            "Return a field of mjData as rows of bytes, updated by every call from now on; None if "
            "mjData has no such field.")
        .def("step", &PySimulations::step_some, py::arg("ids"), py::arg("substeps"),
             py::arg("forces"),
             "Step some simulations, or all if ids is None; return how many failed.")
        .def("begin", &PySimulations::begin_some, py::arg("ids"),
             "Compute all fields of some simulations, or all if ids is None, from their states, as "
             "after a reset; return how many failed.")
        .def("error", &PySimulations::error_of, py::arg("simulation"),
             "Return why a simulation failed in its last call, or an empty string.");
}

}  // namespace pysampler::bindings
