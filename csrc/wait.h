// Waiting: spin, then yield, then park. How long each takes is learned from the machine and site.
//
// A hop, from a wake until the woken thread runs, is measured once (5 us on bare metal, 24 us in a
// virtual machine), and each policy object learns how long the waits at its own site last. Short
// waits are waited out awake. A site whose waits usually last longer than patience_ns() (40 hops,
// at least 500 us) sleeps at once: the two hops of a park and a wake are then under 5 % of the
// wait. In between a wait stays awake for twice the usual length and two hops, then parks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <utility>

#include "clock.h"
#include "deadline.h"
#include "process.h"
#include "shown.h"

namespace pysampler {

enum class Outcome {
    kReady,
    kTimedOut,     // and not ready when checked after the deadline
    kLost,         // the peer that would have made it ready is dead
    kInterrupted,  // a signal came or the policy's slice is over, and go_on did not resume the wait
    kBusy,         // another thread waits here, and only one may
};

// The costs of waiting on this machine.
struct WaitCosts {
    std::int64_t park_ns = 24 * kMicrosecond;  // from a wake until the woken thread runs
    std::int64_t yield_ns = 400;               // sched_yield with no other thread to run
    int cpus = 1;                              // that this process may use

    // Measured on the first call in this process (~2 ms), unless adopted before.
    static const WaitCosts& here();
    // Adopts another process's measurements, clamped to sane values; ignored once here() has some.
    static void adopt(std::int64_t park_ns, std::int64_t yield_ns);
};

// min(CPUs in the affinity mask, CPU quota of the cgroup rounded up), at least 1.
int usable_cpus();

// Where one site's waiting time went.
struct WaitStats {
    std::uint64_t waits = 0;  // that were not ready at the first look
    std::uint64_t parks = 0;  // how often they slept
    std::int64_t awake_ns = 0;
    std::int64_t parked_ns = 0;
    std::int64_t spin_ns = 0;  // the part of awake_ns that paused between looks; the rest yielded
};

// Other processes: how many must run for a wait to end, and how many run anyway.
struct Others {
    std::uint64_t awaited = 1;
    std::uint64_t at_work = 0;
};

// Belongs to one site in one thread: it learns, and is not shared.
class WaitPolicy {
 public:
    // A site whose waits usually last more hops than this sleeps from the start. 40: the two hops
    // of a park and a wake then cost under 5 %; staying awake longer gains less than it burns.
    static constexpr std::int64_t kPatience = 40;
    // At least this, whatever a hop costs: a core that slept for long has cold caches, and many
    // threads are woken in turn.
    static constexpr std::int64_t kLeastPatience = 500 * kMicrosecond;

    WaitPolicy() : WaitPolicy(WaitCosts::here()) {}
    explicit WaitPolicy(const WaitCosts& costs)
        : costs_(costs),
          patience_(std::max(kPatience * costs.park_ns, kLeastPatience)),
          usual_(costs.park_ns) {}

    // Never learns: pauses for spin_ns, then yields for yield_ns, then parks.
    static WaitPolicy fixed(std::int64_t spin_ns, std::int64_t yield_ns) {
        WaitPolicy policy;
        policy.adaptive_ = false;
        policy.fixed_spin_ = spin_ns;
        policy.fixed_yield_ = yield_ns;
        return policy;
    }

    // Interrupts a wait at least this often, so that the caller can check for signals that came
    // just before it slept.
    void set_slice(std::int64_t ns) { slice_ = ns; }
    // An interrupted wait continues if this returns true; without it, none does.
    void set_go_on(std::function<bool()> go_on) { go_on_ = std::move(go_on); }
    // `busy` cheaply returns how many other processes work while this one waits: as long as they
    // need every CPU, this one sleeps and leaves its CPU to them.
    void set_busy(std::function<std::uint64_t()> busy) { busy_ = std::move(busy); }
    // Whether a process that must run for the wait to end has no other CPU than this one. Then only
    // a short wait stays awake: its yields give the CPU away, but count as use of it, and the
    // scheduler lets the other wait until both have used it for equally long.
    void set_shares_cpu(bool on) { shares_cpu_ = on; }
    // Where adaptive waits sleep. It must outlive them.
    void set_home(Home* home) { home_ = home; }
    // Whether to wake early and spin up to a deadline. On by default.
    void set_precise(bool on) { precise_ = on; }

    // Whether a caller that waits again and again without sleeping must stop.
    bool interrupted() { return go_on_ && !go_on_(); }

    bool adaptive() const { return adaptive_; }
    std::int64_t patience_ns() const { return patience_; }
    std::int64_t usual_ns() const { return usual_; }
    std::int64_t guard_ns() const { return guard(); }
    // Whether others want this CPU, judged by how long the last yields took.
    bool crowded() const { return crowded_ >= kCrowd; }
    // Any thread.
    WaitStats stats() const {
        return {stats_.waits, stats_.parks, stats_.awake_ns, stats_.parked_ns, stats_.spin_ns};
    }
    const WaitCosts& costs() const { return costs_; }

    // Waits until ready() or the deadline. `ready` is cheap and has no side effects. `park(until)`
    // arms the primitive, checks again, sleeps until a wake or `until`, disarms, and returns false
    // if a signal interrupted it. kTimedOut is never early, and never returned if ready() was true
    // at the deadline.
    //
    // If the awaited processes need every CPU, staying awake would take one from them: the wait
    // parks at once, and is cheap to wake, since no CPU idles. If all processes at work together
    // need every CPU, only a wait that is usually shorter than a park and a wake stays awake.
    template <class Ready, class Park>
    Outcome wait(std::int64_t deadline, Ready&& ready, Park&& park, Others others = {}) {
        for (;;) {
            const Outcome outcome = wait_a_slice(deadline, ready, park, has_room(others));
            if (outcome != Outcome::kInterrupted || !go_on_ || !go_on_()) return outcome;
        }
    }

 private:
    static constexpr int kLooks = 32;  // between two readings of the clock, ~0.5 us
    // A look between two yields is 0.4 us late, one between two pauses is not. Worth it at first.
    static constexpr std::int64_t kFirstLook = 2 * kMicrosecond;
    // A long yield weighs as much as four short ones; a single one is noise.
    static constexpr int kLongYield = 4;
    static constexpr int kCrowd = 16;
    static constexpr std::uint32_t kCrowdedWaits = 32;
    // This close to a deadline the clock is read at every look: a block of looks takes longer.
    static constexpr std::int64_t kLastLook = 2 * kMicrosecond;
    // How many hops a wait stays awake although others need the CPU: as many as sleeping costs.
    static constexpr std::int64_t kGrace = 2;
    static constexpr std::int64_t kSharedGrace = 4;  // and although it has no CPU but the other's

    // Whether the wait may stay awake.
    bool has_room(Others others) const {
        const auto cpus = static_cast<std::uint64_t>(costs_.cpus);
        const std::int64_t hop = costs_.park_ns;
        return others.awaited < cpus && (others.at_work < cpus || usual_ <= kGrace * hop) &&
               (!shares_cpu_ || usual_ <= kSharedGrace * hop);
    }

    template <class Ready, class Park>
    Outcome wait_a_slice(std::int64_t deadline, Ready& ready, Park& park, bool room) {
        if (ready()) return Outcome::kReady;
        const std::int64_t start = now_ns();
        if (deadline <= start) return ready() ? Outcome::kReady : Outcome::kTimedOut;
        stats_.waits += 1;
        std::int64_t now = start;
        Outcome outcome = Outcome::kInterrupted;
        if (!adaptive_ || (room && !move_on())) {
            outcome = stay_awake(deadline, start, now, ready);
        } else if (crowded_ > 0) {
            --crowded_;
        }
        if (outcome == Outcome::kInterrupted) {
            const std::int64_t awake_until = now;
            outcome = sleep(deadline, start, now, ready, park);
            stats_.parked_ns += now - awake_until;
            stats_.awake_ns += awake_until - start;
        } else {
            stats_.awake_ns += now - start;
        }
        // An interrupted wait lasts at least this long.
        if (outcome != Outcome::kInterrupted || now - start > usual_) learn(now - start);
        return outcome;
    }

    // kInterrupted: the budget is spent, it is time to park.
    template <class Ready>
    Outcome stay_awake(std::int64_t deadline, std::int64_t start, std::int64_t& now, Ready& ready) {
        const std::int64_t spin_end = later(start, adaptive_ ? first_look() : fixed_spin_);
        const std::int64_t yield_end =
            later(adaptive_ ? start : spin_end, adaptive_ ? budget() : fixed_yield_);
        if (crowded_ > 0) --crowded_;
        // The rest before the deadline is waited out awake, reading the clock at every look.
        const std::int64_t last_look =
            std::min(deadline - (crowded() ? kLastLook : guard()), later(start, slice_));
        while (now < spin_end && now < last_look) {
            for (int look = 0; look < kLooks; ++look) {
                if (ready()) return Outcome::kReady;
                cpu_pause();
            }
            now = now_ns();
            if (now >= deadline) return ready() ? Outcome::kReady : Outcome::kTimedOut;
        }
        stats_.spin_ns += now - start;
        while (now < yield_end && now < last_look) {
            yield(now);
            if (ready()) return Outcome::kReady;
            if (now >= deadline) return Outcome::kTimedOut;
            if (busy_ && adaptive_ && now - start >= kGrace * costs_.park_ns &&
                busy_() >= static_cast<std::uint64_t>(costs_.cpus)) {
                break;
            }
        }
        return Outcome::kInterrupted;
    }

    template <class Ready, class Park>
    Outcome sleep(std::int64_t deadline, std::int64_t start, std::int64_t& now, Ready& ready,
                  Park& park) {
        const std::int64_t slice_end = later(start, slice_);
        for (;;) {
            const std::int64_t wake_at = deadline == kForever ? kForever : deadline - guard();
            if (now >= wake_at) {
                if (start >= wake_at) wake_margin_.learn(0);
                break;
            }
            const std::int64_t until = std::min(wake_at, slice_end);
            stats_.parks += 1;
            const Home::Stay stay(adaptive_ ? home_ : nullptr);
            const bool undisturbed = park(until);
            now = now_ns();
            if (ready()) return Outcome::kReady;
            if (now >= until && until == wake_at) wake_margin_.learn(now - until);
            if (!undisturbed || now >= slice_end) return Outcome::kInterrupted;
        }
        // The guard is short; a yield beside busy programs takes 2 to 4 ms.
        do {
            if (ready()) return Outcome::kReady;
            cpu_pause();
            now = now_ns();
        } while (now < deadline);
        return ready() ? Outcome::kReady : Outcome::kTimedOut;
    }

    static std::int64_t later(std::int64_t t, std::int64_t by) {
        return by >= kForever - t ? kForever : t + by;
    }

    std::int64_t first_look() const {
        return budget() > 0 && !crowded() && costs_.cpus > 1 ? kFirstLook : 0;
    }

    std::int64_t budget() const {
        if (usual_ >= patience_) return 0;
        return std::min(patience_, 2 * usual_ + 2 * costs_.park_ns);
    }

    // How long before a deadline to wake up; 0 if crowded, since spinning would take others' CPU.
    std::int64_t guard() const { return precise_ && !crowded() ? wake_margin_.ns() : 0; }

    // Two threads that only yield to each other may share a CPU for long while another CPU idles:
    // the scheduler considers them too cache-hot to move. One that sleeps wakes on a free CPU.
    bool move_on() { return crowded() && ++crowded_waits_ % kCrowdedWaits == 0; }

    void learn(std::int64_t length) { usual_ += (std::min(length, 2 * patience_) - usual_) / 8; }

    // CPUs are short if a yield gave this one away for longer than the call itself takes.
    void yield(std::int64_t& now) {
        const std::int64_t before = now;
        cpu_yield();
        now = now_ns();
        if (now - before > 2 * costs_.yield_ns) {
            crowded_ = std::min(crowded_ + kLongYield, 2 * kCrowd);
        } else if (crowded_ > 0) {
            --crowded_;
        }
    }

    WaitCosts costs_;
    std::int64_t patience_;
    std::int64_t usual_;  // moving average of this site's waits, in ns
    WakeMargin wake_margin_;
    std::int64_t slice_ = kForever;
    std::int64_t fixed_spin_ = 0;
    std::int64_t fixed_yield_ = 0;
    int crowded_ = 0;
    std::uint32_t crowded_waits_ = 0;
    bool adaptive_ = true;
    bool precise_ = true;
    bool shares_cpu_ = false;
    Home* home_ = nullptr;
    std::function<std::uint64_t()> busy_;
    std::function<bool()> go_on_;
    struct {  // as in WaitStats
        Shown<std::uint64_t> waits, parks;
        Shown<std::int64_t> awake_ns, parked_ns, spin_ns;
    } stats_;
};

// Sleeps until the deadline: parked until shortly before it, then awake. Returns false if a signal
// handler ran or the policy's slice is over: call it again with the same deadline.
bool sleep_until(std::int64_t deadline, WaitPolicy& policy);

}  // namespace pysampler
