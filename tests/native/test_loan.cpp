#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>

#include "check.h"
#include "loan.h"
#include "segment.h"
#include "support.h"

using namespace pysampler;
using support::Child;
using support::open_fds;

namespace {

constexpr std::size_t kBytes = 10'000;  // not whole pages

bool always(const Loan&) { return true; }
bool never(const Loan&) { return false; }

struct Shared {
    std::shared_ptr<Segment> segment = Segment::create(3 * kBytes);
    std::byte* at = segment->at(segment->allocate(kBytes), kBytes);
    // For messages between parent and child.
    std::shared_ptr<Segment> words_segment = Segment::create(64);
    std::atomic<int>* word =
        new (words_segment->at(words_segment->allocate(64), 64)) std::atomic<int>(0);

    void fill(int value) const { std::fill_n(at, kBytes, std::byte(value)); }
    bool is(int value) const {
        return std::all_of(at, at + kBytes, [&](std::byte one) { return one == std::byte(value); });
    }
};

}  // namespace

TEST(a_fork_has_its_own_copy_of_held_memory) {
    const Shared shared;
    const Loan loan(shared.at, kBytes, &always);
    shared.fill(1);
    Child child([&] {
        support::until([&] { return *shared.word == 1; });
        CHECK(shared.is(1));
        shared.fill(3);
        CHECK(shared.is(3));
    });
    shared.fill(2);  // right after fork() has returned
    *shared.word = 1;
    child.finish();
    CHECK(shared.is(2));
    CHECK(!loan.shared());
}

TEST(a_fork_shares_memory_that_is_not_held) {
    const Shared shared;
    const Loan loan(shared.at, kBytes, &never);
    shared.fill(1);
    Child child([&] { shared.fill(2); });
    child.finish();
    CHECK(shared.is(2));
}

TEST(a_fork_leaves_no_descriptor_open) {
    const Shared shared;
    const Loan loan(shared.at, kBytes, &always);
    const auto before = open_fds();
    Child child([&] { CHECK(open_fds() == before); });
    child.finish();
    CHECK(open_fds() == before);
}

int main(int argc, char** argv) { return check::main(argc, argv); }
