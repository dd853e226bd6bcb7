#include "loan.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <utility>

#include "clock.h"
#include "segment.h"

namespace pysampler {
namespace {

// How long fork() waits for the child's copies: a stopped child must not block its parent forever.
constexpr std::int64_t kPatienceNs = 10'000'000'000;

std::mutex mutex;  // of the list, and of one fork at a time
Loan* first = nullptr;

// Replaces shared pages with private ones that hold the same bytes. The other bytes of these pages
// become private as well: a fork cannot use what its parent shares with workers anyway.
bool make_own(std::byte* at, std::size_t bytes) noexcept {
    const std::size_t page = Segment::page();
    const std::size_t before = reinterpret_cast<std::uintptr_t>(at) % page;  // in its first page
    std::byte* const from = at - before;
    const std::size_t size = (before + bytes + page - 1) / page * page;
    if (madvise(from, size, MADV_NORMAL) != 0) return true;  // not mapped in children
    void* const own = mmap(nullptr, size, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (own == MAP_FAILED) return false;
    std::memcpy(own, from, size);
    if (mremap(own, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, from) != MAP_FAILED) return true;
    munmap(own, size);
    return false;
}

}  // namespace

Loan::Loan(std::byte* at, std::size_t bytes, bool (*held)(const Loan&)) noexcept
    : at_(at), bytes_(bytes), held_(held) {
    const std::lock_guard lock(mutex);
    next_ = first;
    if (next_ != nullptr) next_->previous_ = this;
    first = this;
}

Loan::~Loan() {
    const std::lock_guard lock(mutex);
    (previous_ == nullptr ? first : previous_->next_) = next_;
    if (next_ != nullptr) next_->previous_ = previous_;
}

// The fork under way.
struct Fork {
    static inline bool copying = false;
    static inline int answer[2] = {-1, -1};  // a pipe from the child

    static void prepare() noexcept {
        mutex.lock();
        copying = false;
        for (Loan* loan = first; loan != nullptr; loan = loan->next_) {
            loan->copied_ = loan->bytes_ > 0 && loan->held_(*loan);
            copying = copying || loan->copied_;
        }
        if (copying && pipe2(answer, O_CLOEXEC) != 0) answer[0] = answer[1] = -1;
    }

    static void in_child() noexcept {
        if (std::exchange(copying, false)) {
            char done = 1;
            for (Loan* loan = first; loan != nullptr; loan = loan->next_) {
                if (loan->copied_ && !make_own(loan->at_, loan->bytes_)) done = 0;
            }
            // No SIGPIPE even if the parent is gone: this process holds the reading end as well.
            while (answer[1] >= 0 && write(answer[1], &done, 1) < 0 && errno == EINTR) {
            }
            close_answer();
        }
        mutex.unlock();
    }

    static void in_parent() noexcept {
        if (std::exchange(copying, false) && !answered()) {
            for (Loan* loan = first; loan != nullptr; loan = loan->next_) {
                if (loan->copied_) loan->shared_.store(true, std::memory_order_relaxed);
            }
        }
        mutex.unlock();
    }

    // Whether no child shares memory on loan: it has made its copies, or it is not (or no longer)
    // there.
    static bool answered() noexcept {
        if (answer[0] < 0) return false;  // no descriptors left for the pipe
        close(std::exchange(answer[1], -1));
        const std::int64_t deadline = now_ns() + kPatienceNs;
        pollfd entry{answer[0], POLLIN, 0};
        int ready = 0;
        do {
            const std::int64_t left = (deadline - now_ns()) / 1'000'000;
            ready = poll(&entry, 1, static_cast<int>(left > 0 ? left : 0));
        } while (ready < 0 && errno == EINTR);
        char done = 0;
        const bool ended = ready == 1 && read(answer[0], &done, 1) == 0;
        close_answer();
        return ended || done == 1;
    }

    static void close_answer() noexcept {
        for (int& end : answer) {
            if (end >= 0) close(std::exchange(end, -1));
        }
    }
};

namespace {

[[maybe_unused]] const int at_fork =
    pthread_atfork(&Fork::prepare, &Fork::in_parent, &Fork::in_child);

}  // namespace
}  // namespace pysampler
