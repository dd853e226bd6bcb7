// The handles that more than one binding knows.
#pragma once

#include <functional>

#include "doorbell.h"
#include "support.h"

namespace pysampler::bindings {

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

    // For the policy of a member's own waits; keeps the segment mapped.
    std::function<std::uint64_t()> wanted_by_waiter() const;

 private:
    PyDoorbell(const PySegment& segment, std::uint32_t count, const py::object& offset,
               const std::optional<WaitPolicy>& policy);
    PyDoorbell(const Place& place, std::uint32_t count, const std::optional<WaitPolicy>& policy);
    std::uint32_t index(const py::handle& member, const char* verb) const;

    std::uint32_t count_;
    Doorbell::Cell* cell_;
    Doorbell::Member* members_;
    Doorbell bell_;
    Site site_;
    Side waiter_;  // the handle's lists of who was found belong to one wait at a time
};

}  // namespace pysampler::bindings
