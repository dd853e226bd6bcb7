#include "doorbell.h"

#include <algorithm>
#include <span>

#include "hot.h"
#include "support.h"

namespace pysampler::bindings {
namespace {

// Far below Position::kMaxAhead, and more processes than any machine runs.
constexpr std::uint64_t kMaxMembers = 1 << 20;

py::array_t<std::uint32_t> to_array(std::span<const std::uint32_t> indices) {
    return py::array_t<std::uint32_t>(static_cast<py::ssize_t>(indices.size()), indices.data());
}

std::uint32_t member_count(const py::object& members) {
    const std::uint64_t count = whole(members, "make doorbell", "members", 1);
    if (count > kMaxMembers) {
        throw py::value_error("cannot make doorbell: members " + std::to_string(count) +
                              ", expected at most " + std::to_string(kMaxMembers));
    }
    return static_cast<std::uint32_t>(count);
}

class PyDoorbell : public Handle {
 public:
    PyDoorbell(const PySegment& segment, const py::object& members, const py::object& offset,
               const std::optional<WaitPolicy>& policy);

    bool post(const py::handle& member);
    py::array wait(const py::object& want, const Seconds& timeout, const Nanoseconds& deadline);
    std::size_t take(const py::object& members);
    py::array take_ready();
    void revive(const py::object& member);
    std::vector<std::uint32_t> lost_members() const;
    Part member(const py::object& member) const;
    WaitStats stats() const { return site_.policy().stats(); }
    std::uint32_t members() const { return count_; }
    std::string state() const;

 private:
    PyDoorbell(const PySegment& segment, std::uint32_t count, const py::object& offset,
               const std::optional<WaitPolicy>& policy);
    PyDoorbell(const Place& place, std::uint32_t count, const std::optional<WaitPolicy>& policy);
    std::uint32_t index(const py::handle& member, const char* verb) const;
    std::vector<std::uint32_t> all_lost() const;

    std::uint32_t count_;
    Doorbell::Cell* cell_;
    Doorbell::Member* members_;
    Doorbell bell_;
    Site site_;
    Side waiter_;  // the lists of Doorbell::ready() and lost() belong to one wait at a time
};

PyDoorbell::PyDoorbell(const PySegment& segment, const py::object& members,
                       const py::object& offset, const std::optional<WaitPolicy>& policy)
    : PyDoorbell(segment, member_count(members), offset, policy) {}

PyDoorbell::PyDoorbell(const PySegment& segment, std::uint32_t count, const py::object& offset,
                       const std::optional<WaitPolicy>& policy)
    : PyDoorbell(Place(segment, offset, Doorbell::bytes(count)), count, policy) {}

PyDoorbell::PyDoorbell(const Place& place, std::uint32_t count,
                       const std::optional<WaitPolicy>& policy)
    : Handle("doorbell", place.segment, place.at),
      count_(count),
      cell_(place.make<Doorbell::Cell>()),
      members_(reinterpret_cast<Doorbell::Member*>(cell_ + 1)),
      bell_(cell_, members_, count_),
      site_(policy) {
    named("Doorbell");
    for (std::uint32_t i = 0; place.fresh && i < count_; ++i) new (members_ + i) Doorbell::Member;
}

std::uint32_t PyDoorbell::index(const py::handle& member, const char* verb) const {
    const std::uint64_t i = whole(member, "use doorbell", "member", 0);
    if (i >= count_) {
        throw py::index_error("cannot " + std::string(verb) + " doorbell: member " +
                              std::to_string(i) + ", expected one below " + std::to_string(count_));
    }
    return static_cast<std::uint32_t>(i);
}

bool PyDoorbell::post(const py::handle& member) {
    const std::uint32_t i = index(member, "post to");
    const Pin pin(*this, "post to");
    return bell_.post(i, now_ns());
}

py::array PyDoorbell::wait(const py::object& want, const Seconds& timeout,
                           const Nanoseconds& deadline) {
    const std::uint64_t count =
        want.is_none() ? count_ : whole(want, "wait on doorbell", "count", 1);
    if (count > count_) {
        throw py::value_error("cannot wait on doorbell: count " + std::to_string(count) +
                              ", expected at most its members, " + std::to_string(count_));
    }
    const std::int64_t until = deadline_of(timeout, deadline);
    const Turn turn(*this, waiter_, "wait on");
    const Outcome outcome = site_([&](WaitPolicy& policy) {
        return bell_.wait_until(static_cast<std::uint32_t>(count), until, policy);
    });
    if (outcome == Outcome::kBusy) busy("wait on", cell_->posts.waiter());
    py::array ready = to_array(bell_.ready());
    if (outcome == Outcome::kLost) {
        const std::vector<std::uint32_t> lost(bell_.lost().begin(), bell_.lost().end());
        py::dict attributes;
        attributes["members"] = py::cast(lost);
        attributes["ready"] = ready;
        std::string names;
        for (const std::uint32_t i : lost) names += (names.empty() ? "" : ", ") + std::to_string(i);
        raise("LostError",
              "cannot wait on doorbell: member" + std::string(lost.size() > 1 ? "s " : " ") +
                  names + " lost",
              attributes);
    }
    return ready;
}

std::size_t PyDoorbell::take(const py::object& members) {
    // An array has __index__ whatever its length.
    const bool many = PyIndex_Check(members.ptr()) == 0 ||
                      (py::isinstance<py::array>(members) &&
                       py::reinterpret_borrow<py::array>(members).ndim() > 0);
    std::vector<std::uint32_t> all;  // checks every index before taking the first
    if (many) {
        for (const py::handle member : members) all.push_back(index(member, "take from"));
    } else {
        all.push_back(index(members, "take from"));
    }
    const Pin pin(*this, "take from");
    return static_cast<std::size_t>(
        std::count_if(all.begin(), all.end(), [this](std::uint32_t i) { return bell_.take(i); }));
}

py::array PyDoorbell::take_ready() {
    const Pin pin(*this, "take from");
    const std::vector<std::uint32_t> taken = bell_.ready_now();
    for (const std::uint32_t i : taken) bell_.take(i);
    return to_array(taken);
}

void PyDoorbell::revive(const py::object& member) {
    const std::uint32_t i = index(member, "revive member of");
    const Pin pin(*this, "revive member of");
    bell_.revive(i);
}

std::vector<std::uint32_t> PyDoorbell::lost_members() const {
    const Pin pin(*this, "look at");
    return all_lost();
}

std::vector<std::uint32_t> PyDoorbell::all_lost() const {
    std::vector<std::uint32_t> lost;
    for (std::uint32_t i = 0; i < count_; ++i) {
        if (bell_.is_lost(i)) lost.push_back(i);
    }
    return lost;
}

Part PyDoorbell::member(const py::object& member) const {
    const std::uint32_t i = index(member, "watch");
    const Pin pin(*this, "watch");
    return {"doorbell's member " + std::to_string(i),
            [segment = pin.segment(), cell = cell_, members = members_, count = count_, i](int) {
                Doorbell(cell, members, count).mark_lost(i);
            }};
}

std::string PyDoorbell::state() const {
    return repr([this] {
        std::uint32_t ready = 0;
        for (std::uint32_t i = 0; i < count_; ++i) ready += bell_.is_ready(i);
        std::string text = std::to_string(ready) + " of " + std::to_string(count_) + " ready, " +
                           std::to_string(bell_.posts()) + " posts";
        if (const auto lost = all_lost(); !lost.empty()) {
            text += ", " + std::to_string(lost.size()) + " lost";
        }
        if (const std::uint64_t waiter = bell_.waiter()) text += ", waiter " + waiter_text(waiter);
        return text;
    });
}

}  // namespace

void register_doorbell(py::module_& m) {
    HandleClass<PyDoorbell> doorbell(m, "Doorbell");
    doorbell
        .def(py::init<const PySegment&, const py::object&, const py::object&,
                      const std::optional<WaitPolicy>&>(),
             py::arg("segment"), py::arg("members"), py::arg("offset") = py::none(),
             py::arg("policy") = std::nullopt)
        .def("post", &PyDoorbell::post, py::arg("member"),
             "Mark a member ready, and wake the waiter if enough members are.\n\n"
             "Args:\n"
             "    member: The member's index.\n\n"
             "Returns:\n"
             "    False if its last post has not been taken, or it is lost and not revived.\n")
        .def("wait", &PyDoorbell::wait, py::arg("count") = py::none(), py::kw_only(),
             py::arg("timeout") = py::none(), py::arg("deadline") = py::none(),
             "Wait until enough members are ready.\n\n"
             "Args:\n"
             "    count: How many members to wait for; None: all.\n" PYSAMPLER_WAIT_ARGS
             "\n"
             "Returns:\n"
             "    The indices of the ready members, longest ready first; fewer than `count` at\n"
             "    the deadline. They stay ready until they are taken.\n\n"
             "Raises:\n"
             "    LostError: Members were lost since the last wait, or fewer than `count` are "
             "left.\n"
             "        Its `members` lists the lost ones, its `ready` the ready ones.\n"
             "    BusyError: Another thread waits for this doorbell.\n")
        .def("take", &PyDoorbell::take, py::arg("members"),
             "Take the posts of one or several members, which may then post again.\n\n"
             "Args:\n"
             "    members: One index, or several.\n\n"
             "Returns:\n"
             "    How many of them had posted.\n")
        .def("take_ready", &PyDoorbell::take_ready,
             "Take the posts of all members that are ready now.\n\n"
             "Returns:\n"
             "    Their indices, longest ready first, including posts after the last wait.\n")
        .def("revive", &PyDoorbell::revive, py::arg("member"),
             "Let another process be this member; drops the post of the dead one.\n\n"
             "Args:\n"
             "    member: The member's index.\n")
        .def("member", &PyDoorbell::member, py::arg("member"),
             "Return the part that a Watch marks lost when this member's process dies.\n\n"
             "Args:\n"
             "    member: The member's index.\n")
        .def_property_readonly("lost", &PyDoorbell::lost_members,
                               "The members that are lost and not revived.")
        .def_property_readonly("members", &PyDoorbell::members, "The number of members.")
        .def_property_readonly("stats", &PyDoorbell::stats, "The cost of waits at this handle.")
        .def_static(
            "size_of",
            [](const py::object& members) { return Doorbell::bytes(member_count(members)); },
            "Return how many bytes a doorbell with this many members takes in a segment.");
    Hot<PyDoorbell, Unary<&PyDoorbell::post>>::install(doorbell, "post");
}

}  // namespace pysampler::bindings
