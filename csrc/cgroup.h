// The control groups that limit this process: its own and the visible ones above it.
#pragma once

#include <functional>
#include <string>

namespace pysampler {

// Calls `visit` with the folder of each group under `controller` ("cpu", "memory"), and whether it
// is a version 2 cgroup. In a container the group's own path may not be visible; the root then
// stands for the container's group.
void for_each_cgroup(const std::string& controller,
                     const std::function<void(const std::string& folder, bool v2)>& visit);

}  // namespace pysampler
