// Parcels: large messages, each in its own memfd, whose descriptor is sent through a Unix socket.
// The memory has no name, and the kernel frees it when the last process that has it ends.
#include <fcntl.h>
#include <pybind11/numpy.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <new>
#include <string_view>

#include "descriptor.h"
#include "support.h"

namespace pysampler::bindings {
namespace {

// Sent with the descriptor: it reads as an empty message in a stream of messages.
constexpr char kEmpty[4] = {};

// The memory never changes or shrinks, so a receiver can read it in place.
constexpr int kSeals = F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

template <class Call>
ssize_t retried(Call&& call) {
    ssize_t result;
    do {
        result = call();
    } while (result < 0 && errno == EINTR);
    return result;
}

bool write_all(int fd, std::string_view bytes) {
    while (!bytes.empty()) {
        const ssize_t written = retried([&] { return write(fd, bytes.data(), bytes.size()); });
        if (written <= 0) return false;
        bytes.remove_prefix(static_cast<std::size_t>(written));
    }
    return true;
}

// A message with room for one descriptor.
struct Message {
    char bytes[sizeof kEmpty] = {};
    iovec part{bytes, sizeof bytes};
    alignas(cmsghdr) char room[CMSG_SPACE(sizeof(int))] = {};
    msghdr header{};

    Message() {
        header.msg_iov = &part;
        header.msg_iovlen = 1;
        header.msg_control = room;
        header.msg_controllen = sizeof room;
    }
};

// Returns false if memory, descriptors or room in the socket have run out.
bool send_parcel(int socket, const py::bytes& head, const py::bytes& body) {
    const std::string_view parts[] = {head, body};
    const Released released;
    const Descriptor memory(memfd_create("pysampler parcel", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (memory.fileno() < 0) return false;
    for (const std::string_view part : parts) {
        if (!write_all(memory.fileno(), part)) return false;
    }
    if (fcntl(memory.fileno(), F_ADD_SEALS, kSeals) != 0) return false;
    Message message;
    cmsghdr* control = CMSG_FIRSTHDR(&message.header);
    control->cmsg_level = SOL_SOCKET;
    control->cmsg_type = SCM_RIGHTS;
    control->cmsg_len = CMSG_LEN(sizeof(int));
    const int fd = memory.fileno();
    std::memcpy(CMSG_DATA(control), &fd, sizeof fd);
    return retried([&] { return sendmsg(socket, &message.header, MSG_NOSIGNAL | MSG_DONTWAIT); }) ==
           sizeof kEmpty;
}

// Receives one message and returns the descriptor that came with it, or -1.
Descriptor receive(int socket, Message& message, int flags) {
    const ssize_t received = retried(
        [&] { return recvmsg(socket, &message.header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC | flags); });
    const cmsghdr* control = received < 0 ? nullptr : CMSG_FIRSTHDR(&message.header);
    int fd = -1;
    if (control != nullptr && control->cmsg_type == SCM_RIGHTS) {
        std::memcpy(&fd, CMSG_DATA(control), sizeof fd);
    }
    return Descriptor(fd);
}

// Maps the memory as a read-only array, without a copy.
py::array mapped(int memory, std::size_t size) {
    void* const bytes = mmap(nullptr, size, PROT_READ, MAP_PRIVATE | MAP_POPULATE, memory, 0);
    if (bytes == MAP_FAILED) throw std::bad_alloc();  // MemoryError
    struct Mapping {
        void* bytes;
        std::size_t size;
        ~Mapping() { munmap(bytes, size); }
    };
    const py::capsule owner(new Mapping{bytes, size},
                            [](void* mapping) { delete static_cast<Mapping*>(mapping); });
    py::array_t<std::uint8_t> array(static_cast<py::ssize_t>(size),
                                    static_cast<const std::uint8_t*>(bytes), owner);
    array.attr("flags").attr("writeable") = false;
    return array;
}

// Appends the next parcel to a list, so that no signal handler runs between receiving and storing
// it. The message is taken off the socket last: without memory or a descriptor for it now, it can
// be received again.
void receive_parcel(int socket, py::list& parcels) {
    Message message;
    const Descriptor memory = receive(socket, message, MSG_PEEK);
    struct stat status{};
    if (memory.fileno() < 0 || fstat(memory.fileno(), &status) != 0) {
        raise("LayoutError",
              message.header.msg_flags & MSG_CTRUNC
                  ? "cannot receive from worker: too many open files for a large message"
                  : "cannot receive from worker: a large message has no descriptor");
    }
    const int seals = fcntl(memory.fileno(), F_GET_SEALS);  // with F_SEAL_EXEC on some systems
    if (seals < 0 || (seals & kSeals) != kSeals || status.st_size == 0) {
        raise("LayoutError", "cannot receive from worker: a large message is not complete");
    }
    parcels.append(mapped(memory.fileno(), static_cast<std::size_t>(status.st_size)));
    Message taken;
    receive(socket, taken, 0);
}

}  // namespace

void register_parcel(py::module_& m) {
    m.def("send_parcel", &send_parcel, py::arg("socket"), py::arg("head"), py::arg("body"),
          "Send bytes in their own memfd, without waiting; return whether that was possible.");
    m.def("receive_parcel", &receive_parcel, py::arg("socket"), py::arg("parcels"),
          "Receive the next parcel and append it to a list; no signal handler runs in between.");
}

}  // namespace pysampler::bindings
