// A simulated platform: the production templates under a scheduler that decides everything.
//
// Threads are fibers in one real thread. Before each access to an atomic the scheduler may switch
// to another thread or kill this one; each load may return any value that C++ allows, according to
// vector clocks over the history of stores (as in RC11: no load sees a store of its future). The
// decisions form a path of choices; all paths within a budget are explored, then random ones
// without a budget. The same path gives the same execution.
//
// It finds waits that never end, unordered accesses to a Plain, and failures of expect(). To show
// that it finds them, a memory order can be weakened at one place in the source.
#pragma once

#include <ucontext.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <compare>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <source_location>
#include <string>
#include <vector>

#include "check.h"
#include "futex.h"
#include "support.h"
#include "wait.h"

namespace sim {

using pysampler::FutexResult;
using pysampler::kForever;
using pysampler::Outcome;
using std::memory_order;

inline constexpr std::size_t kThreads = 4;
inline constexpr std::size_t kHistory = 8;  // a load returns one of this many last stores
inline constexpr int kMaxSteps = 2000;      // of one execution; more is a livelock

using Clock = std::array<std::uint32_t, kThreads>;

inline void join(Clock& into, const Clock& other) {
    for (std::size_t i = 0; i < kThreads; ++i) into[i] = std::max(into[i], other[i]);
}

constexpr bool acquires(memory_order order) {
    return order == memory_order::acquire || order == memory_order::acq_rel;
}
constexpr bool releases(memory_order order) {
    return order == memory_order::release || order == memory_order::acq_rel;
}

// How many unlikely things may happen in one execution.
struct Budget {
    int preemptions = 3;
    int stale = 1;  // loads that do not return the newest value
    int kills = 0;
    int early = 0;  // sleeps that end at the deadline or spuriously
};

// A place in the source, and which half of its memory order to remove.
struct Weakening {
    std::string file;
    std::uint32_t line = 0, column = 0;
    bool acquire = false;  // else release

    auto operator<=>(const Weakening&) const = default;
};

class World {
 public:
    // -- for scenarios ----------------------------------------------------------------------------

    // Returns the thread's number. A mortal thread may be killed between any two of its accesses.
    std::size_t spawn(std::function<void()> body, bool mortal = false) {
        Thread& thread = threads_[count_];
        thread.body = std::move(body);
        thread.mortal = mortal;
        thread.state = State::kRunnable;
        thread.clock = {};
        thread.clock[count_] = 1;
        return count_++;
    }
    // Sleeps until state() is true, by means that are not under test and order nothing.
    void until(std::function<bool()> state) {
        if (state()) return;
        me().until = std::move(state);
        me().state = State::kBlocked;
        give_way();
    }
    bool over(std::size_t thread) const {
        return threads_[thread].state == State::kDone || killed(thread);
    }
    bool killed(std::size_t thread) const { return threads_[thread].state == State::kKilled; }
    // Orders everything that the thread has done so far before the current thread's next accesses,
    // by means that are not under test: the kernel orders a death before the news of it.
    void after(std::size_t thread) { join(me().clock, threads_[thread].clock); }
    void expect(bool condition, const char* what) {
        if (!condition) fail(what);
    }

    // -- for the platform -------------------------------------------------------------------------

    std::size_t current() const { return current_; }
    Clock& clock() { return me().clock; }
    std::uint32_t tick() { return ++me().clock[current_]; }

    // Called before each access.
    void step() {
        if (!running_) return;
        if (++steps_ > kMaxSteps) fail("it never ends");
        collect(others_);
        const std::size_t switches = left_.preemptions > 0 ? others_.size() : 0;
        const bool may_die = me().mortal && left_.kills > 0;
        const std::size_t chosen = choose(1 + switches + may_die);
        if (chosen == 0) return;
        if (chosen > switches) {
            --left_.kills;
            me().state = State::kKilled;
            give_way();
        } else {
            --left_.preemptions;
            resume(others_[chosen - 1]);
        }
    }

    // Which of `count` values a load returns, 0 being the newest.
    std::size_t age(std::size_t count) {
        const std::size_t chosen = left_.stale > 0 ? choose(count) : 0;
        if (chosen > 0) --left_.stale;
        return chosen;
    }

    FutexResult sleep(const void* word, std::int64_t deadline) {
        me().state = State::kAsleep;
        me().word = word;
        me().deadline = deadline;
        give_way();
        if (me().woken == FutexResult::kTimedOut) me().late = true;
        return me().woken;
    }
    int wake(const void* word, int count) {
        int woken = 0;
        for (std::size_t i = 0; i < count_ && woken < count; ++i) {
            Thread& thread = threads_[i];
            if (thread.state != State::kAsleep || thread.word != word) continue;
            thread.state = State::kRunnable;
            thread.woken = FutexResult::kWoken;
            ++woken;
        }
        return woken;
    }
    // Whether the deadline of the current wait has passed.
    bool& late() { return me().late; }

    memory_order weakened(memory_order order, const std::source_location& at) {
        if (!acquires(order) && !releases(order)) return order;
        const auto site = [&](bool acquire) {
            const char* file = std::strrchr(at.file_name(), '/');
            return Weakening{file ? file + 1 : at.file_name(), at.line(), at.column(), acquire};
        };
        if (sites_ != nullptr) {
            if (acquires(order)) sites_->insert({site(true), at.function_name()});
            if (releases(order)) sites_->insert({site(false), at.function_name()});
        }
        if (!weakening_ || weakening_->line != at.line()) return order;
        if (acquires(order) && *weakening_ == site(true)) {
            return releases(order) ? memory_order::release : memory_order::relaxed;
        }
        if (releases(order) && *weakening_ == site(false)) {
            return acquires(order) ? memory_order::acquire : memory_order::relaxed;
        }
        return order;
    }

    // Ends the execution.
    void fail(std::string what) {
        failure_ = std::move(what);
        if (running_) setcontext(&main_);
    }
    // Accesses before and after the execution belong to no thread.
    bool running() const { return running_; }

    // -- for the explorer -------------------------------------------------------------------------

    using Sites = std::map<Weakening, std::string>;

    // Executes along the current path, extending it where it ends; returns the failure, if any.
    template <class Scenario>
    std::optional<std::string> execute(const Budget& budget) {
        count_ = 0;
        steps_ = 0;
        at_ = 0;
        left_ = budget;
        failure_.reset();
        Scenario scenario;
        run();
        if (!failure_) scenario.end();
        return failure_;
    }

    // Moves to the next path in order; false after the last.
    bool advance() {
        path_.resize(at_);
        while (!path_.empty()) {
            if (++path_.back().chosen < path_.back().of) return true;
            path_.pop_back();
        }
        return false;
    }
    void walk_in_order() {
        path_.clear();
        random_.reset();
    }
    void walk_at_random(std::uint64_t seed) {
        path_.clear();
        random_.emplace(seed);
    }
    void weaken(std::optional<Weakening> weakening) { weakening_ = std::move(weakening); }
    void note_sites(Sites* sites) { sites_ = sites; }

 private:
    enum class State { kRunnable, kAsleep, kBlocked, kDone, kKilled };

    struct Thread {
        std::function<void()> body;
        ucontext_t context;
        std::unique_ptr<char[]> stack;
        State state;
        Clock clock;
        bool mortal;
        const void* word;  // asleep on
        std::int64_t deadline;
        FutexResult woken;
        bool late;
        std::function<bool()> until;
    };
    struct Choice {
        std::size_t chosen;
        std::size_t of;
    };

    static constexpr std::size_t kStack = 64 * 1024;

    Thread& me() { return threads_[current_]; }

    std::size_t choose(std::size_t of) {
        if (of <= 1) return 0;
        if (random_) return random_->below(4) == 0 ? random_->below(of) : 0;
        if (at_ == path_.size()) path_.push_back({0, of});
        return path_[at_++].chosen;
    }

    bool ready(std::size_t i) {
        Thread& thread = threads_[i];
        switch (thread.state) {
            case State::kRunnable:
                return true;
            case State::kAsleep:
                return left_.early > 0;
            case State::kBlocked:
                return thread.until();
            default:
                return false;
        }
    }

    // The threads that could run instead of the current one.
    void collect(std::vector<std::size_t>& ids) {
        ids.clear();
        for (std::size_t i = 0; i < count_; ++i) {
            if (i != current_ && ready(i)) ids.push_back(i);
        }
    }

    // The current thread cannot continue: another one runs, or the execution is over.
    void give_way() {
        const std::size_t self = current_;
        collect(others_);
        if (ready(self)) others_.push_back(self);  // asleep, and may wake early
        const bool certain = std::any_of(others_.begin(), others_.end(), [this](std::size_t i) {
            return threads_[i].state != State::kAsleep;
        });
        const std::size_t chosen = choose(others_.size() + !certain);
        if (chosen < others_.size()) return resume(others_[chosen]);
        // Time passes: ends the sleeps that have a deadline.
        for (std::size_t i = 0; i < count_; ++i) {
            if (threads_[i].state == State::kAsleep && threads_[i].deadline != kForever) {
                wake_early(i);
                return resume(i);
            }
        }
        for (std::size_t i = 0; i < count_; ++i) {
            if (!over(i)) fail("thread " + std::to_string(i) + " waits forever");
        }
        setcontext(&main_);
    }

    void wake_early(std::size_t i) {
        threads_[i].state = State::kRunnable;
        threads_[i].woken =
            threads_[i].deadline == kForever ? FutexResult::kWoken : FutexResult::kTimedOut;
    }

    void resume(std::size_t next) {
        if (threads_[next].state == State::kAsleep) {
            --left_.early;
            wake_early(next);
        }
        threads_[next].state = State::kRunnable;
        if (next == current_) return;
        ucontext_t* here = &me().context;
        current_ = next;
        swapcontext(here, &threads_[next].context);
    }

    void run() {
        for (std::size_t i = 0; i < count_; ++i) {
            Thread& thread = threads_[i];
            if (!thread.stack) thread.stack = std::make_unique<char[]>(kStack);
            thread.late = false;
            getcontext(&thread.context);
            thread.context.uc_stack.ss_sp = thread.stack.get();
            thread.context.uc_stack.ss_size = kStack;
            thread.context.uc_link = nullptr;
            makecontext(&thread.context, &World::main_of_fiber, 0);
        }
        current_ = 0;
        running_ = true;
        swapcontext(&main_, &threads_[0].context);
        running_ = false;
    }

    static void main_of_fiber();

    std::array<Thread, kThreads> threads_;
    std::size_t count_ = 0;
    std::size_t current_ = 0;
    ucontext_t main_;
    bool running_ = false;
    int steps_ = 0;
    Budget left_;
    std::optional<std::string> failure_;
    std::vector<std::size_t> others_;

    std::vector<Choice> path_;
    std::size_t at_ = 0;
    std::optional<support::Random> random_;
    std::optional<Weakening> weakening_;
    Sites* sites_ = nullptr;
};

inline World world;

inline void World::main_of_fiber() {
    world.me().body();
    world.me().state = State::kDone;
    world.give_way();
}

// Memory that is not atomic: of any two accesses, one a write, one must come before the other.
template <class T>
class Plain {
 public:
    Plain() = default;
    explicit Plain(T value) : value_(std::move(value)) {}

    T read() const {
        check(written_, "a read races with a write");
        read_[world.current()] = world.tick();
        return value_;
    }
    operator T() const { return read(); }  // NOLINT(google-explicit-constructor): as a T
    Plain& operator=(T value) {
        write(std::move(value));
        return *this;
    }
    void write(T value) {
        check(written_, "a write races with a write");
        check(read_, "a write races with a read");
        written_[world.current()] = world.tick();
        value_ = std::move(value);
    }

 private:
    static void check(const Clock& done, const char* what) {
        for (std::size_t i = 0; i < kThreads; ++i) {
            if (done[i] > world.clock()[i]) world.fail(what);
        }
    }

    T value_{};
    Clock written_{};
    mutable Clock read_{};
};

// -- the platform
// -----------------------------------------------------------------------------------

struct Sim {
    template <class T>
    using Plain = sim::Plain<T>;

    template <class T>
    class Atomic {
        using Where = std::source_location;

     public:
        explicit Atomic(T value = {}) { stores_[0].value = value; }
        Atomic(const Atomic&) = delete;
        Atomic& operator=(const Atomic&) = delete;

        T load(memory_order order, Where at = Where::current()) const {
            world.step();
            return read(oldest(), world.weakened(order, at));
        }
        void store(T to, memory_order order, Where at = Where::current()) {
            world.step();
            append(to, world.weakened(order, at), {});
        }
        T fetch_add(T by, memory_order order, Where at = Where::current()) {
            return change([by](T seen) { return static_cast<T>(seen + by); }, order, at);
        }
        T fetch_or(T bits, memory_order order, Where at = Where::current()) {
            return change([bits](T seen) { return static_cast<T>(seen | bits); }, order, at);
        }
        T fetch_and(T bits, memory_order order, Where at = Where::current()) {
            return change([bits](T seen) { return static_cast<T>(seen & bits); }, order, at);
        }
        bool compare_exchange_strong(T& seen, T wanted, memory_order yes, memory_order no,
                                     Where at = Where::current()) {
            world.step();
            const bool equal = newest().value == seen;
            seen = read(count_ - 1, world.weakened(equal ? yes : no, at));
            if (equal) append(wanted, world.weakened(yes, at), newest().released);
            return equal;
        }

        T truth() const { return newest().value; }  // as the kernel sees it; for checks too

     private:
        struct Store {
            T value;
            Clock released{};      // joined into the clock of a thread that acquires it
            std::size_t by = 0;    // the thread that stored it
            std::uint32_t at = 0;  // on that thread's clock; 0 for the initial value
            Clock seen{};          // when each thread first read it, or 0
        };

        const Store& store_at(std::size_t i) const { return stores_[i % kHistory]; }
        const Store& newest() const { return store_at(count_ - 1); }

        // The oldest store that the current thread may still read, knowing of no newer one.
        std::size_t oldest() const {
            const Clock& now = world.clock();
            const std::size_t first = count_ > kHistory ? count_ - kHistory : 0;
            for (std::size_t i = count_ - 1; i > first; --i) {
                const Store& store = store_at(i);
                if (store.at <= now[store.by]) return i;
                for (std::size_t t = 0; t < kThreads; ++t) {
                    if (store.seen[t] != 0 && store.seen[t] <= now[t]) return i;
                }
            }
            return first;
        }

        T read(std::size_t from, memory_order order) const {
            if (!world.running()) return newest().value;
            const std::size_t back = world.age(count_ - from);
            Store& store = stores_[(count_ - 1 - back) % kHistory];
            const std::uint32_t now = world.tick();
            std::uint32_t& seen = store.seen[world.current()];
            if (seen == 0) seen = now;
            if (acquires(order)) join(world.clock(), store.released);
            return store.value;
        }

        void append(T value, memory_order order, Clock released) {
            if (!world.running()) {
                stores_[0].value = value;
                return;
            }
            Store store{.value = value, .by = world.current(), .at = world.tick()};
            if (releases(order)) join(released, world.clock());
            store.released = released;
            stores_[count_++ % kHistory] = store;
        }

        template <class Change>
        T change(Change&& to, memory_order order, const Where& at) {
            world.step();
            order = world.weakened(order, at);
            const T seen = read(count_ - 1, order);
            append(to(seen), order, newest().released);  // continues the release sequence
            return seen;
        }

        mutable std::array<Store, kHistory> stores_{};
        std::size_t count_ = 1;
    };

    template <class T>
    static FutexResult futex_wait(const Atomic<T>& word, T expected, std::int64_t deadline) {
        world.step();
        if (static_cast<std::uint32_t>(word.truth()) != static_cast<std::uint32_t>(expected)) {
            return FutexResult::kMismatch;
        }
        return world.sleep(&word, deadline);
    }
    template <class T>
    static int futex_wake(const Atomic<T>& word, int count) {
        world.step();
        return world.wake(&word, count);
    }
    static std::uint64_t self_id() { return (world.current() + 1) << 32; }
    static bool alive(std::uint64_t id) { return !world.over((id >> 32) - 1); }
    static std::int64_t next_look(std::int64_t deadline) { return deadline; }
};

// Parks at once. The scheduler decides when deadlines pass.
struct Policy {
    template <class Ready, class Park>
    Outcome wait(std::int64_t deadline, Ready&& ready, Park&& park, pysampler::Others = {}) {
        world.late() = false;
        for (;;) {
            if (ready()) return Outcome::kReady;
            if (world.late()) return Outcome::kTimedOut;
            park(deadline);
        }
    }
};

// -- exploration
// --------------------------------------------------------------------------------------

struct Result {
    std::uint64_t executions = 0;
    std::optional<std::string> found;
};

// Runs all executions within the budget, up to `most`, until one fails.
template <class Scenario>
Result explore(const Budget& budget, std::uint64_t most = ~0ULL) {
    Result result;
    world.walk_in_order();
    do {
        ++result.executions;
        result.found = world.execute<Scenario>(budget);
    } while (!result.found && result.executions < most && world.advance());
    return result;
}

// Runs random executions, with a budget that is hardly ever used up.
template <class Scenario>
Result wander(Budget budget, std::uint64_t seeds) {
    budget.preemptions = 1000;
    budget.stale = 8;
    Result result;
    for (std::uint64_t seed = 1; seed <= seeds && !result.found; ++seed) {
        ++result.executions;
        world.walk_at_random(seed);
        result.found = world.execute<Scenario>(budget);
        if (result.found) *result.found += ", seed " + std::to_string(seed);
    }
    world.walk_in_order();
    return result;
}

// -- checks of a file of scenarios
// -------------------------------------------------------------------

struct Scenario {
    const char* name;
    Result (*explore)(const Budget&, std::uint64_t most);
    Result (*wander)(Budget, std::uint64_t seeds);
    std::vector<Budget> budgets;
};

template <class S>
Scenario scenario(const char* name, std::vector<Budget> budgets) {
    return {name, explore<S>, wander<S>, std::move(budgets)};
}

inline constexpr Budget kAtRandom{.kills = 1, .early = 2};

inline void check_within_budgets(const std::vector<Scenario>& scenarios) {
    for (const Scenario& one : scenarios) {
        for (const Budget& budget : one.budgets) {
            const std::int64_t start = pysampler::now_ns();
            const Result result = one.explore(budget, ~0ULL);
            std::printf("   %-14s %d preemptions, %d stale, %d kills: %8lu executions, %.1f s\n",
                        one.name, budget.preemptions, budget.stale, budget.kills,
                        static_cast<unsigned long>(result.executions),
                        static_cast<double>(pysampler::now_ns() - start) / 1e9);
            std::fflush(stdout);
            if (result.found) std::fprintf(stderr, "%s: %s\n", one.name, result.found->c_str());
            CHECK(!result.found);
        }
    }
}

inline void check_at_random(const std::vector<Scenario>& scenarios) {
    for (const Scenario& one : scenarios) {
        const Result result = one.wander(kAtRandom, 20'000);
        if (result.found) std::fprintf(stderr, "%s: %s\n", one.name, result.found->c_str());
        CHECK(!result.found);
    }
}

// A memory order that no scenario of a file needs, and the reason it is there.
struct Spare {
    const char* file;
    const char* function;
    const char* why;
};

// "bool pysampler::BasicFlag<Os>::set() [with ...]" is "set".
inline std::string short_name(const std::string& function) {
    const std::string upto = function.substr(0, function.find('('));
    return upto.substr(upto.rfind(':') + 1);
}

// Weakens each memory order in turn: one of the scenarios must fail, unless the order is spare.
inline void check_that_orders_are_missed(const std::vector<Scenario>& scenarios,
                                         const std::vector<Spare>& spares) {
    World::Sites sites;
    world.note_sites(&sites);
    for (const Scenario& one : scenarios) one.wander(kAtRandom, 500);
    world.note_sites(nullptr);
    CHECK(sites.size() > 10);
    std::size_t missed = 0, spared = 0;
    for (const auto& [site, function] : sites) {
        std::optional<std::string> found;
        world.weaken(site);
        for (const Scenario& one : scenarios) {
            if (!found) found = one.wander(kAtRandom, 5'000).found;
            for (const Budget& budget : one.budgets) {
                if (!found) found = one.explore(budget, 2'000).found;
            }
        }
        world.weaken(std::nullopt);
        const std::string name = short_name(function);
        const bool spare = std::any_of(spares.begin(), spares.end(), [&](const Spare& one) {
            return site.file == one.file && name == one.function;
        });
        if (!found && !spare) {
            std::fprintf(stderr, "%s:%u: no scenario fails without the %s of %s()\n",
                         site.file.c_str(), site.line, site.acquire ? "acquire" : "release",
                         name.c_str());
        }
        missed += found.has_value();
        spared += !found && spare;
    }
    std::printf("   %zu of %zu memory orders are needed\n", missed, sites.size());
    CHECK(missed + spared == sites.size());
}

}  // namespace sim
