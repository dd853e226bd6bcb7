#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <system_error>

#include "check.h"
#include "flag.h"
#include "segment.h"
#include "support.h"

using namespace pysampler;
using support::Child;
using support::open_fds;

namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

// How many segments are mapped in this process, by any handle.
std::size_t mappings() {
    std::ifstream maps("/proc/self/maps");
    std::size_t count = 0;
    for (std::string line; std::getline(maps, line);) count += line.find("memfd:") != line.npos;
    return count;
}

// The message of the error that `call` throws. It must leave nothing open and nothing mapped.
template <class Error, class Call>
std::string error(Call&& call) {
    const std::size_t open = open_fds(), mapped = mappings();
    std::optional<std::string> what;
    try {
        call();
    } catch (const Error& e) {
        what = e.what();
    }
    CHECK(what);
    CHECK(open_fds() == open && mappings() == mapped);
    return *what;
}

bool has(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
}

SegmentHeader header_of(const Segment& segment) {
    SegmentHeader header;
    CHECK(pread(segment.fd(), &header, sizeof header, 0) == sizeof header);
    return header;
}

// A memfd as any process could make it.
int forge(const SegmentHeader& header, std::size_t size, int seals = kSeals) {
    const int fd = memfd_create("forged", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    CHECK(fd >= 0);
    CHECK(ftruncate(fd, static_cast<off_t>(size)) == 0);
    const std::size_t some = std::min(size, sizeof header);
    CHECK(pwrite(fd, &header, some, 0) == static_cast<ssize_t>(some));
    CHECK(fcntl(fd, F_ADD_SEALS, seals) == 0);
    return fd;
}

std::string attach_error(const SegmentHeader& header, std::size_t size, int seals = kSeals) {
    return error<LayoutError>([&] { Segment::attach(forge(header, size, seals)); });
}

}  // namespace

TEST(a_segment_has_the_requested_size_zeroed_in_whole_pages) {
    const auto segment = Segment::create(5000);
    CHECK(segment->size() % Segment::page() == 0);
    CHECK(segment->left() >= 5000);
    CHECK(segment->mine());
    const std::size_t offset = segment->allocate(5000);
    const std::byte* bytes = segment->at(offset, 5000);
    for (std::size_t i = 0; i < 5000; ++i) CHECK(bytes[i] == std::byte{0});
    CHECK(Segment::create(0)->size() == Segment::page());
}

TEST(the_header_describes_the_segment) {
    const auto segment = Segment::create(100);
    const SegmentHeader header = header_of(*segment);
    CHECK(std::memcmp(&header.magic, "pysamplr", 8) == 0);
    CHECK(header.version == kLayoutVersion);
    CHECK(header.creator == static_cast<std::uint32_t>(getpid()));
    CHECK(header.size == segment->size());
    CHECK(header.id == segment->id());
    CHECK(Segment::create(100)->id() != segment->id());
    std::int64_t costs[2];
    std::memcpy(costs, header.reserved, sizeof costs);
    CHECK(costs[0] == WaitCosts::here().park_ns && costs[1] == WaitCosts::here().yield_ns);
}

TEST(a_segment_is_sealed_against_resizing_and_closes_on_exec) {
    const auto segment = Segment::create(10'000);
    const int fd = segment->fd();
    CHECK(ftruncate(fd, 0) != 0 && errno == EPERM);
    CHECK(ftruncate(fd, 1 << 20) != 0 && errno == EPERM);
    CHECK(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE) != 0 && errno == EPERM);
    CHECK((fcntl(fd, F_GET_SEALS) & kSeals) == kSeals);
    CHECK(fcntl(fd, F_GETFD) & FD_CLOEXEC);
}

TEST(an_attached_process_sees_the_creators_writes) {
    const auto segment = Segment::create(1000);
    const std::size_t offset = segment->allocate(sizeof(Flag));
    auto* flag = new (segment->at(offset, sizeof(Flag))) Flag;
    Child child([&] {
        const auto attached = Segment::attach(dup(segment->fd()));
        CHECK(attached->id() == segment->id() && attached->size() == segment->size());
        CHECK(!attached->mine());
        auto* theirs = reinterpret_cast<Flag*>(attached->at(offset, sizeof(Flag)));
        CHECK(theirs != flag);
        WaitPolicy policy = support::parking();
        CHECK(theirs->wait_until(kForever, policy) == Outcome::kReady);
    });
    support::until([&] { return flag->parked(); });
    flag->set();
    child.finish();
}

TEST(a_segment_outlives_its_creators_handle) {
    auto creator = Segment::create(100);
    const std::size_t offset = creator->allocate(8);
    *creator->at(offset, 8) = std::byte{42};
    const auto attached = Segment::attach(dup(creator->fd()));
    creator.reset();
    CHECK(*attached->at(offset, 8) == std::byte{42});
}

TEST(nothing_stays_open_or_mapped_with_the_last_handle) {
    const std::size_t open = open_fds(), mapped = mappings();
    {
        const auto segment = Segment::create(100);
        const auto attached = Segment::attach(dup(segment->fd()));
        CHECK(open_fds() == open + 2 && mappings() == mapped + 2);
    }
    CHECK(open_fds() == open && mappings() == mapped);
}

TEST(a_foreign_descriptor_is_refused_and_closed) {
    const auto foreign = [](auto&& open_one) {
        const std::string what = error<LayoutError>([&] { Segment::attach(open_one()); });
        CHECK(has(what, "cannot attach segment") && has(what, "not a pysampler segment"));
    };
    foreign([] { return open("/dev/zero", O_RDWR | O_CLOEXEC); });
    foreign([] { return open("/proc/self/exe", O_RDONLY | O_CLOEXEC); });
    foreign([] {
        int ends[2];
        CHECK(pipe(ends) == 0);
        close(ends[1]);
        return ends[0];
    });
    error<std::system_error>([] { Segment::attach(-1); });
}

TEST(a_memfd_with_another_header_or_seals_is_refused_and_closed) {
    const SegmentHeader right = header_of(*Segment::create(100));
    Segment::attach(forge(right, right.size));  // the cases below differ from it in one thing each
    const int half_sealed[] = {0, F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_SHRINK | F_SEAL_GROW};
    for (const int seals : half_sealed) {
        CHECK(has(attach_error(right, right.size, seals), "not a pysampler segment"));
    }
    SegmentHeader wrong = right;
    wrong.magic ^= 1;
    CHECK(has(attach_error(wrong, wrong.size), "not a pysampler segment"));
    wrong = right;
    wrong.version = kLayoutVersion + 1;
    const std::string version = attach_error(wrong, wrong.size);
    CHECK(has(version, "layout version " + std::to_string(kLayoutVersion + 1)));
    CHECK(has(version, "expected " + std::to_string(kLayoutVersion)));
    wrong = right;
    wrong.size += Segment::page();
    const std::string size = attach_error(wrong, right.size);
    CHECK(has(size, "size " + std::to_string(right.size)));
    CHECK(has(size, "expected " + std::to_string(wrong.size)));
    CHECK(has(attach_error(right, sizeof right - 1), "not a pysampler segment"));
    CHECK(has(attach_error(right, 0), "not a pysampler segment"));
}

TEST(allocations_share_no_cache_line) {
    const auto segment = Segment::create(4 * Segment::page());
    const std::size_t a = segment->allocate(1);
    const std::size_t b = segment->allocate(129);
    const std::size_t c = segment->allocate(8, 8);
    const std::size_t d = segment->allocate(1, Segment::page());
    CHECK(a >= sizeof(SegmentHeader) && a % kLine == 0);
    CHECK(b >= a + kLine && b % kLine == 0);
    CHECK(c >= b + 2 * kLine && c % kLine == 0);
    CHECK(d > c && d % Segment::page() == 0);
}

TEST(allocating_more_than_is_left_raises) {
    const auto segment = Segment::create(1000);
    const std::string what = error<OutOfMemory>([&] { segment->allocate(segment->left() + 1); });
    CHECK(has(what, std::to_string(segment->left() + 1)));
    CHECK(has(what, std::to_string(segment->left()) + " of " + std::to_string(segment->size())));
    for (const std::size_t huge : {SIZE_MAX, SIZE_MAX - 127, SIZE_MAX / 2}) {
        error<OutOfMemory>([&] { segment->allocate(huge); });
    }
    error<OutOfMemory>([&] { segment->allocate(1, segment->size()); });
    segment->allocate(segment->left());  // the refused calls took nothing
    CHECK(segment->left() == 0);
    error<OutOfMemory>([&] { segment->allocate(1); });
}

TEST(room_has_addresses_but_no_memory_before_take) {
    const std::size_t room = 64 << 20;
    const auto segment = Segment::create(100, room);
    const auto blocks = [&] {
        struct stat status;
        CHECK(fstat(segment->fd(), &status) == 0);
        return static_cast<std::size_t>(status.st_blocks) * 512;
    };
    CHECK(segment->size() == Segment::page() + room && segment->left() < Segment::page());
    CHECK(blocks() == Segment::page());
    const std::size_t at = segment->size() - room + 10;
    segment->take(at, 2 * Segment::page());
    CHECK(blocks() == 4 * Segment::page());
    segment->take(at, 1);
    CHECK(blocks() == 4 * Segment::page());
    *segment->at(at, 1, 1) = std::byte{1};
    error<LayoutError>([&] { segment->take(100, 1); });
    error<LayoutError>([&] { segment->take(at, room); });
    const auto other = Segment::attach(dup(segment->fd()));
    CHECK(*other->at(at, 1, 1) == std::byte{1} && other->left() == 0);
}

TEST(only_the_creator_allocates) {
    const auto segment = Segment::create(1000);
    const auto attached = Segment::attach(dup(segment->fd()));
    CHECK(attached->left() == 0);
    error<LayoutError>([&] { attached->allocate(1); });
    Child([&] {
        CHECK(!segment->mine() && segment->left() == 0);
        const std::string what = error<LayoutError>([&] { segment->allocate(1); });
        CHECK(has(what, std::to_string(getppid())) && has(what, std::to_string(getpid())));
    }).finish();
    segment->allocate(1);
}

TEST(only_addresses_behind_the_header_and_inside_are_returned) {
    const auto segment = Segment::create(1000);
    const std::size_t size = segment->size();
    CHECK(segment->at(kLine, size - kLine) != nullptr);
    CHECK(segment->at(size, 0) != nullptr);
    CHECK(segment->at(kLine + 8, 8, 8) == segment->at(kLine, 8) + 8);
    error<LayoutError>([&] { segment->at(0, 8); });
    error<LayoutError>([&] { segment->at(kLine + 8, 8); });
    error<LayoutError>([&] { segment->at(kLine, size); });
    error<LayoutError>([&] { segment->at(kLine, SIZE_MAX); });
    error<LayoutError>([&] { segment->at(size + kLine, 0); });
    error<LayoutError>([&] { segment->at(SIZE_MAX / kLine * kLine, 2 * kLine); });
}

TEST(map_twice_gives_each_byte_two_more_addresses) {
    const std::size_t page = Segment::page();
    const std::size_t mapped = mappings();
    auto segment = Segment::create(4 * page);
    const std::size_t offset = segment->allocate(2 * page, page);
    const auto twice = segment->map_twice(offset, 2 * page);
    std::byte* once = segment->at(offset, 2 * page);
    for (std::size_t i = 0; i < 4 * page; i += 61) {
        twice.get()[i] = static_cast<std::byte>(i);
        CHECK(once[i % (2 * page)] == static_cast<std::byte>(i));
        CHECK(twice.get()[(i + 2 * page) % (4 * page)] == static_cast<std::byte>(i));
    }
    const char text[] = "across the end";
    std::memcpy(twice.get() + 2 * page - 7, text, sizeof text);
    CHECK(std::memcmp(once + 2 * page - 7, text, 7) == 0);
    CHECK(std::memcmp(once, text + 7, sizeof text - 7) == 0);
    segment.reset();
    CHECK(std::memcmp(twice.get() + 2 * page, text + 7, 3) == 0);  // lives with its pointer
    CHECK(mappings() == mapped + 2);
}

TEST(only_whole_pages_are_mapped_twice) {
    const std::size_t page = Segment::page();
    const std::size_t mapped = mappings();
    const auto segment = Segment::create(4 * page);
    error<LayoutError>([&] { segment->map_twice(page, 0); });
    error<LayoutError>([&] { segment->map_twice(page, page - 1); });
    error<LayoutError>([&] { segment->map_twice(page + kLine, page); });
    error<LayoutError>([&] { segment->map_twice(0, page); });
    error<LayoutError>([&] { segment->map_twice(page, segment->size()); });
    segment->map_twice(page, page).reset();
    CHECK(mappings() == mapped + 1);
}

TEST(a_too_large_segment_raises_an_error_with_its_size) {
    for (const std::size_t huge : {SIZE_MAX, SIZE_MAX / 2, SIZE_MAX / 4, SIZE_MAX >> 14}) {
        CHECK(has(error<OutOfMemory>([&] { Segment::create(huge); }), "cannot make segment of "));
    }
    CHECK(memory_left() > 0);
    const std::size_t more = memory_left() + (std::size_t{1} << 33);
    CHECK(has(error<OutOfMemory>([&] { Segment::create(more); }), "leave "));
}

// The kernel would send SIGXFSZ, which kills.
TEST(a_limit_on_file_sizes_raises_instead_of_a_signal) {
    Child([] {
        const rlimit limit{2 * Segment::page(), RLIM_INFINITY};
        CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
        CHECK(has(error<OutOfMemory>([] { Segment::create(1 << 20); }), "ulimit -f"));
        Segment::create(Segment::page());
    }).finish();
}

TEST(a_limit_on_address_space_raises) {
    if (support::kSanitized) return support::skipped("sanitizers need address space");
    Child([] {
        std::size_t pages = 0;
        std::ifstream("/proc/self/statm") >> pages;
        const std::size_t size = 64 << 20;
        const rlimit limit{pages * Segment::page() + size / 2, RLIM_INFINITY};
        CHECK(setrlimit(RLIMIT_AS, &limit) == 0);
        CHECK(has(error<OutOfMemory>([=] { Segment::create(size); }), "no address space"));
        const auto segment = Segment::create(size / 4 + Segment::page());
        const std::size_t offset = segment->allocate(size / 4, Segment::page());
        error<std::system_error>([&] { segment->map_twice(offset, size / 4); });
    }).finish();
}

TEST(a_limit_on_descriptors_raises) {
    Child([] {
        const rlimit limit{3, 3};  // all of them in use
        CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
        int code = 0;
        try {
            Segment::create(100);
        } catch (const std::system_error& e) {
            code = e.code().value();
        }
        CHECK(code == EMFILE);
    }).finish();
}

int main(int argc, char** argv) { return check::main(argc, argv); }
