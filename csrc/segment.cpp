#include "segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <limits>
#include <new>
#include <system_error>
#include <utility>

#include "cgroup.h"
#include "wait.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace pysampler {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
constexpr std::size_t kUnlimited = std::numeric_limits<std::size_t>::max();

// The machine's WaitCosts, in the header's reserved bytes, so that a process that attaches need not
// measure them.
struct CostsInHeader {
    std::int64_t park_ns;
    std::int64_t yield_ns;
};
static_assert(sizeof(CostsInHeader) <= sizeof(SegmentHeader::reserved));

[[noreturn]] void fail(const char* what) {
    throw std::system_error(errno, std::generic_category(), what);
}

std::string too_large(std::size_t size, const std::string& why) {
    return "cannot make segment of " + std::to_string(size) + " bytes: " + why;
}

// The number in a file; kUnlimited if it says "max" or does not exist.
std::size_t read_limit(const std::string& path) {
    std::ifstream file(path);
    std::size_t value;
    return file >> value ? value : kUnlimited;
}

// The bytes that a group's processes may still use. The page cache counts as used, but the kernel
// drops it before it refuses memory.
std::size_t cgroup_left(const std::string& folder, bool v2) {
    const std::size_t most = read_limit(folder + (v2 ? "/memory.max" : "/memory.limit_in_bytes"));
    std::size_t used = read_limit(folder + (v2 ? "/memory.current" : "/memory.usage_in_bytes"));
    if (most == kUnlimited || used == kUnlimited) return kUnlimited;
    std::ifstream stat(folder + "/memory.stat");
    const std::string prefix = v2 ? "" : "total_";
    std::size_t value;
    for (std::string name; stat >> name >> value;) {
        if (name == prefix + "active_file" || name == prefix + "inactive_file") {
            used -= std::min(used, value);
        }
    }
    return most > used ? most - used : 0;
}

// In pieces: before Linux 6.11 a signal undoes the whole call, and a profiler may send one every
// 10 ms.
void take_pages(int fd, std::size_t from, std::size_t size) {
    constexpr std::size_t piece = 4 << 20;
    for (std::size_t at = from; at < from + size;) {
        const std::size_t length = std::min(piece, from + size - at);
        const int refused = posix_fallocate(fd, static_cast<off_t>(at), static_cast<off_t>(length));
        if (refused == EINTR) continue;
        if (refused == ENOSPC || refused == ENOMEM || refused == EFBIG) {
            throw OutOfMemory(too_large(size, std::generic_category().message(refused)));
        }
        if (refused != 0) {
            throw std::system_error(refused, std::generic_category(),
                                    "cannot make segment: fallocate");
        }
        at += length;
    }
}

int open_memfd() {
    // Linux before 6.3 does not know NOEXEC_SEAL; some systems are configured to require it.
    const unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
    int fd = memfd_create("pysampler", flags | MFD_NOEXEC_SEAL);
    if (fd < 0 && errno == EINVAL) fd = memfd_create("pysampler", flags);
    if (fd < 0) fail("cannot make segment: memfd_create");
    return fd;
}

std::byte* map(int fd, std::size_t size) {
    void* base = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED) {
        if (errno == ENOMEM) {
            throw OutOfMemory("cannot map segment of " + std::to_string(size) +
                              " bytes: no address space left");
        }
        fail("cannot map segment");
    }
    return static_cast<std::byte*>(base);
}

void check_left(std::size_t size) {
    const std::size_t left = memory_left();
    if (size > left) {
        throw OutOfMemory(
            too_large(size, "the machine and its limits leave " + std::to_string(left) + " bytes"));
    }
}

void check_file_size(std::size_t size) {
    rlimit file_size;
    // Beyond it the kernel sends SIGXFSZ, which kills: check first.
    if (getrlimit(RLIMIT_FSIZE, &file_size) == 0 && file_size.rlim_cur != RLIM_INFINITY &&
        size > file_size.rlim_cur) {
        throw OutOfMemory(too_large(size, "the file size limit (ulimit -f) is " +
                                              std::to_string(file_size.rlim_cur) + " bytes"));
    }
}

}  // namespace

std::size_t memory_left() {
    std::size_t left = kUnlimited;
    std::ifstream meminfo("/proc/meminfo");
    for (std::string name; meminfo >> name;) {
        std::size_t kib = 0;
        meminfo >> kib;
        if (name == "MemAvailable:") {
            left = kib * 1024;
            break;
        }
        meminfo.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
    }
    for_each_cgroup("memory", [&left](const std::string& folder, bool v2) {
        left = std::min(left, cgroup_left(folder, v2));
    });
    return left;
}

std::size_t Segment::page() noexcept { return static_cast<std::size_t>(sysconf(_SC_PAGESIZE)); }

std::shared_ptr<Segment> Segment::create(std::size_t payload, std::size_t room) {
    for (const std::size_t bytes : {payload, room}) {
        if (bytes > kUnlimited / 4)
            throw OutOfMemory(too_large(bytes, "no machine has that much memory"));
    }
    const std::size_t end = round_up(sizeof(SegmentHeader) + payload, page());
    const std::size_t size = end + round_up(room, page());
    check_file_size(size);
    check_left(end);
    const WaitCosts& costs = WaitCosts::here();
    Descriptor fd(open_memfd());
    // Allocates the pages now: MemoryError here rather than SIGBUS hours later.
    take_pages(fd.fileno(), 0, end);
    if (ftruncate(fd.fileno(), static_cast<off_t>(size)) != 0)
        fail("cannot make segment: ftruncate");
    std::shared_ptr<Segment> segment(new Segment(fd.fileno(), map(fd.fileno(), size), size));
    fd.take();
    segment->end_ = end;
    madvise(segment->base_, end, MADV_POPULATE_WRITE);  // 5.14; else the first touch maps a page
    if (fcntl(segment->fd(), F_ADD_SEALS, kSeals) != 0) fail("cannot seal segment");
    if (getrandom(&segment->id_, sizeof segment->id_, 0) != sizeof segment->id_) {
        fail("cannot make segment: getrandom");
    }
    segment->creator_ = getpid();
    auto* header =
        new (segment->base_) SegmentHeader{.magic = kMagic,
                                           .version = kLayoutVersion,
                                           .creator = static_cast<std::uint32_t>(getpid()),
                                           .size = size,
                                           .id = segment->id_,
                                           .reserved = {}};
    new (header->reserved) CostsInHeader{costs.park_ns, costs.yield_ns};
    return segment;
}

std::shared_ptr<Segment> Segment::attach(int owned) {
    Descriptor fd(owned);
    struct stat status;
    if (fd.fileno() < 0 || fstat(fd.fileno(), &status) != 0) fail("cannot attach segment");
    const auto size = static_cast<std::size_t>(status.st_size);
    const int seals = fcntl(fd.fileno(), F_GET_SEALS);
    if (seals < 0 || (seals & kSeals) != kSeals || size < sizeof(SegmentHeader)) {
        throw LayoutError("cannot attach segment: the file descriptor is not a pysampler segment");
    }
    std::shared_ptr<Segment> segment(new Segment(fd.fileno(), map(fd.fileno(), size), size));
    fd.take();
    SegmentHeader header;
    std::copy_n(segment->base_, sizeof header, reinterpret_cast<std::byte*>(&header));
    if (header.magic != kMagic) {
        throw LayoutError("cannot attach segment: the file descriptor is not a pysampler segment");
    }
    if (header.version != kLayoutVersion) {
        throw LayoutError("cannot attach segment: layout version " +
                          std::to_string(header.version) + ", expected " +
                          std::to_string(kLayoutVersion));
    }
    if (header.size != size) {
        throw LayoutError("cannot attach segment: size " + std::to_string(size) + ", expected " +
                          std::to_string(header.size));
    }
    segment->id_ = header.id;
    const auto* costs = reinterpret_cast<const CostsInHeader*>(header.reserved);
    WaitCosts::adopt(costs->park_ns, costs->yield_ns);
    return segment;
}

Segment::Segment(int fd, std::byte* base, std::size_t size)
    : fd_(fd), base_(base), size_(size), end_(size) {}

Segment::~Segment() { munmap(base_, size_); }

bool Segment::mine() const noexcept { return creator_ == getpid(); }

std::size_t Segment::allocate(std::size_t bytes, std::size_t align) {
    if (!mine()) {
        throw LayoutError("cannot allocate in segment: this is pid " + std::to_string(getpid()) +
                          ", expected the process that made it" +
                          (creator_ == 0 ? "" : ", pid " + std::to_string(creator_)));
    }
    // Relaxed: the bytes are zeroed already, and whoever gets the offset gets it from here.
    std::size_t used = used_.load(std::memory_order_relaxed), offset;
    do {
        offset = round_up(used, std::max(align, kLine));
        if (offset > end_ || bytes > end_ - offset) {
            throw OutOfMemory("cannot allocate in segment: " + std::to_string(bytes) + " bytes, " +
                              std::to_string(left()) + " of " + std::to_string(end_) + " left");
        }
    } while (!used_.compare_exchange_weak(used, round_up(offset + bytes, kLine),
                                          std::memory_order_relaxed));
    return offset;
}

void Segment::take(std::size_t offset, std::size_t bytes) {
    if (!mine() || offset < end_) {
        throw LayoutError("cannot take room of segment: " + std::to_string(bytes) + " bytes at " +
                          std::to_string(offset) +
                          " are not in the room of a segment of this process");
    }
    at(offset, bytes, 1);
    const std::size_t from = offset / page() * page();
    const std::size_t size = round_up(offset + bytes, page()) - from;
    check_left(size);
    take_pages(fd(), from, size);
}

std::byte* Segment::at(std::size_t offset, std::size_t bytes, std::size_t align) const {
    if (offset < sizeof(SegmentHeader) || offset % align != 0 || offset > size_ ||
        bytes > size_ - offset) {
        throw LayoutError("cannot use segment: " + std::to_string(bytes) + " bytes at " +
                          std::to_string(offset) + " are not aligned or outside its " +
                          std::to_string(size_));
    }
    return base_ + offset;
}

std::shared_ptr<std::byte> Segment::map_twice(std::size_t offset, std::size_t bytes) const {
    at(offset, bytes, page());
    if (bytes == 0 || bytes % page() != 0) {
        throw LayoutError("cannot map twice: " + std::to_string(bytes) +
                          " bytes, expected whole pages of " + std::to_string(page()));
    }
    void* base = mmap(nullptr, 2 * bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) fail("cannot map twice");
    std::shared_ptr<std::byte> twice(static_cast<std::byte*>(base),
                                     [bytes](std::byte* at) { munmap(at, 2 * bytes); });
    for (std::size_t i = 0; i < 2; ++i) {
        if (mmap(twice.get() + i * bytes, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
                 fd(), static_cast<off_t>(offset)) == MAP_FAILED) {
            fail("cannot map twice");
        }
    }
    return twice;
}

}  // namespace pysampler
