#include "cgroup.h"

#include <fstream>
#include <sstream>

namespace pysampler {

void for_each_cgroup(const std::string& controller,
                     const std::function<void(const std::string& folder, bool v2)>& visit) {
    std::ifstream groups("/proc/self/cgroup");
    for (std::string line; std::getline(groups, line);) {
        std::istringstream fields(line);
        std::string id, controllers, path;
        std::getline(fields, id, ':');
        std::getline(fields, controllers, ':');
        std::getline(fields, path);
        const bool v2 = controllers.empty();
        if (!v2 && ("," + controllers + ",").find("," + controller + ",") == std::string::npos) {
            continue;
        }
        const std::string root = v2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/" + controller;
        for (;;) {
            visit(root + (path == "/" ? "" : path), v2);
            if (path.empty() || path == "/") break;
            path.resize(path.rfind('/'));
        }
    }
}

}  // namespace pysampler
