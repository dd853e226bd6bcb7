#include "flag.h"

#include <pybind11/pybind11.h>

#include "hot.h"
#include "support.h"

namespace pysampler::bindings {
namespace {

class PyFlag : public Handle {
 public:
    PyFlag(const PySegment& segment, const py::object& offset,
           const std::optional<WaitPolicy>& policy)
        : PyFlag(Place(segment, offset, sizeof(Flag)), policy) {}

    bool set() {
        const Pin pin(*this, "set");
        return flag_->set();
    }

    bool clear() {
        const Pin pin(*this, "clear");
        return flag_->clear();
    }

    bool is_set() const {
        const Pin pin(*this, "look at");
        return flag_->is_set();
    }

    bool wait(const py::handle& timeout, const py::handle& deadline) {
        const std::int64_t until = deadline_of(timeout, deadline);
        const Pin pin(*this, "wait on");
        if (flag_->is_set()) return true;
        const Turn turn(*this, waiter_, "wait on");
        switch (site_([&](WaitPolicy& policy) { return flag_->wait_until(until, policy); })) {
            case Outcome::kReady:
                return true;
            case Outcome::kLost:
                lost("wait on", "poster");
            case Outcome::kBusy:
                busy("wait on", flag_->waiter());
            default:
                return false;
        }
    }

    bool poster_lost() const {
        const Pin pin(*this, "look at");
        return flag_->lost();
    }

    void replaced() {
        const Pin pin(*this, "use");
        flag_->clear_lost();
    }

    Part poster() const {
        const Pin pin(*this, "watch");
        return {"flag's poster",
                [segment = pin.segment(), flag = flag_](int) { flag->mark_lost(); }};
    }

    WaitStats stats() const { return site_.policy().stats(); }

    std::string state() const {
        return repr([this] {
            std::string text = flag_->is_set() ? "set" : "not set";
            text += ", posts " + std::to_string(flag_->posts());
            if (const std::uint64_t waiter = flag_->waiter())
                text += ", waiter " + waiter_text(waiter);
            if (flag_->lost()) text += ", poster lost";
            return text;
        });
    }

 private:
    PyFlag(const Place& place, const std::optional<WaitPolicy>& policy)
        : Handle("flag", place.segment, place.at), flag_(place.make<Flag>()), site_(policy) {
        named("Flag");
    }

    Flag* flag_;
    Site site_;
    Side waiter_;
};

}  // namespace

void register_flag(py::module_& m) {
    HandleClass<PyFlag> flag(m, "Flag");
    flag.def(py::init<const PySegment&, const py::object&, const std::optional<WaitPolicy>&>(),
             py::arg("segment"), py::arg("offset") = py::none(), py::arg("policy") = std::nullopt)
        .def("set", &PyFlag::set,
             "Set the flag, and wake the waiter if it sleeps.\n\n"
             "Returns:\n"
             "    False if the last post has not been cleared.\n")
        .def("clear", &PyFlag::clear,
             "Clear the flag once the waiter has handled the post.\n\n"
             "Returns:\n"
             "    False if it was not set.\n")
        .def("is_set", &PyFlag::is_set, "Return whether there is a post that has not been cleared.")
        .def(
            "wait",
            [](PyFlag& self, const Seconds& timeout, const Nanoseconds& deadline) {
                return self.wait(timeout, deadline);
            },
            py::arg("timeout") = py::none(), py::kw_only(), py::arg("deadline") = py::none(),
            "Wait until the flag is set.\n\n"
            "Args:\n" PYSAMPLER_WAIT_ARGS
            "\n"
            "Returns:\n"
            "    False if it is not set at the deadline.\n\n"
            "Raises:\n"
            "    LostError: The flag is not set, and the poster is known to be dead.\n"
            "    BusyError: Another thread waits for this flag.\n")
        .def("poster", &PyFlag::poster,
             "Return the part that a Watch marks lost when the poster dies.")
        .def("replaced", &PyFlag::replaced,
             "Forget the loss of the poster: another process has taken its place.")
        .def_property_readonly("poster_lost", &PyFlag::poster_lost,
                               "Whether the poster is known to be dead.")
        .def_property_readonly("stats", &PyFlag::stats, "The cost of waits at this handle.")
        .def_static(
            "size_of", [] { return sizeof(Flag); },
            "Return how many bytes a flag takes in a segment.");
    Hot<PyFlag, Plain<&PyFlag::set>>::install(flag, "set");
    Hot<PyFlag, Plain<&PyFlag::clear>>::install(flag, "clear");
    Hot<PyFlag, Plain<&PyFlag::is_set>>::install(flag, "is_set");
    Hot<PyFlag, Timed<&PyFlag::wait>>::install(flag, "wait");
}

}  // namespace pysampler::bindings
