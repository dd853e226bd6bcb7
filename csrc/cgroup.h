// The control groups that bound this process: its own, and those above as far as they are visible.
#pragma once

#include <functional>
#include <string>

namespace pysampler {

// Calls `visit` with the folder of each group under `controller` ("cpu", "memory"), and whether it
// is of version 2. Inside a container the own path may not be visible: its root is then the group.
void for_each_cgroup(const std::string& controller,
                     const std::function<void(const std::string& folder, bool v2)>& visit);

}  // namespace pysampler
