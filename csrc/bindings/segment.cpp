#include "segment.h"

#include <fcntl.h>

#include <cerrno>
#include <cstdio>
#include <system_error>

#include "support.h"

namespace pysampler::bindings {
namespace {

PySegment create(const py::object& size, std::size_t room) {
    const std::size_t bytes = whole(size, "make segment", "size", 1);
    Released released;  // filling gigabytes takes a while
    return PySegment(Segment::create(bytes, room));
}

PySegment attach(int fd) {
    // A duplicate: the caller keeps its descriptor, whatever happens.
    const int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (own < 0) throw std::system_error(errno, std::generic_category(), "cannot attach segment");
    return PySegment(Segment::attach(own));
}

// The offset and a view of an array, newly allocated or at `offset`.
std::pair<std::size_t, py::array> array(const PySegment& self,
                                        const std::vector<py::ssize_t>& shape,
                                        const py::dtype& dtype, const py::object& offset) {
    auto bytes = static_cast<std::size_t>(dtype.itemsize());
    for (const py::ssize_t n : shape) {
        if (n < 0 || __builtin_mul_overflow(bytes, static_cast<std::size_t>(n), &bytes)) {
            throw py::value_error("cannot make array: shape " + text(shape) +
                                  " is negative or too large");
        }
    }
    const Place place(self, offset, bytes);
    return {place.at, view(place.segment, place.memory, dtype, shape)};
}

}  // namespace

std::string PySegment::state() const {
    return repr([this] {
        char id[17];
        std::snprintf(id, sizeof id, "%016llx", static_cast<unsigned long long>(segment().id()));
        return std::string(id) + ", " + std::to_string(segment().size()) + " bytes, " +
               (segment().mine() ? std::to_string(segment().left()) + " left" : "attached");
    });
}

void register_segment(py::module_& m) {
    Class<PySegment>(m, "Segment")
        .def(py::init([](const PySegment& same) { return PySegment(Pin(same, "use").segment()); }),
             py::arg("same"))  // another handle to it
        .def(py::init(&create), py::arg("size"), py::arg("room") = 0)
        .def_static("attach", &attach, py::arg("fd"),
                    "Return the segment behind a file descriptor.")
        .def("array", &array, py::arg("shape"), py::arg("dtype"), py::arg("offset") = py::none(),
             "Return the offset and a view of an array, newly allocated or at `offset`.")
        .def(
            "take",
            [](const PySegment& self, std::size_t offset, std::size_t bytes) {
                Pin(self, "take room of").segment()->take(offset, bytes);
            },
            py::arg("offset"), py::arg("bytes"),
            "Allocate memory for a part of the room.\n\n"
            "Args:\n"
            "    offset: The offset of the part in the segment.\n"
            "    bytes: Its length.\n\n"
            "Raises:\n"
            "    MemoryError: The machine or a limit has too little memory left.\n")
        .def("close", &PySegment::close, "Release the memory, once no handle and no view needs it.")
        .def_property_readonly("closed", &PySegment::closed, "Whether close() was called.")
        .def_property_readonly(
            "fd", [](const PySegment& self) { return Pin(self, "use").segment()->fd(); },
            "The descriptor of its memfd.")
        .def_property_readonly(
            "id", [](const PySegment& self) { return Pin(self, "use").segment()->id(); },
            "A random number, the same in every process.")
        .def_property_readonly(
            "size", [](const PySegment& self) { return Pin(self, "use").segment()->size(); },
            "The size in bytes, header included.")
        .def_property_readonly(
            "left", [](const PySegment& self) { return Pin(self, "use").segment()->left(); },
            "How many bytes are not yet allocated; 0 except in the process that made it.")
        .def("__repr__", &PySegment::state);
    m.def("memory_left", &memory_left,
          "Return how many bytes may still be allocated: the available memory, capped by the "
          "cgroups' limits.");
}

}  // namespace pysampler::bindings
