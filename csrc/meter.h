// A worker's live counters: which env is stepping, since when, how long steps and resets took,
// where waiting time went. Only the worker writes them, and any process reads them at any time:
// each number is right, but several read together may be from different moments.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstdint>
#include <memory>
#include <utility>

#include "layout.h"
#include "trace.h"
#include "wait.h"

namespace pysampler {

// A histogram of durations: two buckets per doubling; the first ends at 768 ns, the last holds
// everything from 0.4 s on.
struct Durations {
    static constexpr std::uint32_t kBuckets = 40;
    static constexpr std::uint32_t kFirst = 18;  // 2 * log2 of 512 ns

    static std::uint32_t bucket_of(std::int64_t ns) {
        const auto value = static_cast<std::uint64_t>(std::max<std::int64_t>(ns, 2));
        const auto log = static_cast<std::uint32_t>(std::bit_width(value) - 1);
        const auto half = static_cast<std::uint32_t>((value >> (log - 1)) & 1);
        const std::uint32_t at = 2 * log + half;
        return std::min(at < kFirst ? 0 : at - kFirst, kBuckets - 1);
    }

    std::uint64_t count;
    std::uint64_t total_ns;
    std::array<std::uint64_t, kBuckets> buckets;

    void add(std::int64_t ns) {
        ++count;
        total_ns += static_cast<std::uint64_t>(ns);
        ++buckets[bucket_of(ns)];
    }
};

struct alignas(kLine) EnvMeter {
    Durations steps;
    Durations resets;
};
static_assert(sizeof(EnvMeter) == 6 * kLine);

struct alignas(kLine) WorkerMeter {
    static constexpr std::int64_t kNone = -1;

    std::atomic<std::int64_t> since;  // now_ns() when `env` began, or the last one ended
    std::atomic<std::int64_t> env;
    WaitStats waits;
};
static_assert(sizeof(WorkerMeter) == kLine);

// Writes the meters of one worker and its envs.
// Owner: the thread that runs the worker's commands.
class Meter {
 public:
    // `envs`: the meters of all envs of the pool, by index.
    Meter(EnvMeter* envs, WorkerMeter* worker) : envs_(envs), worker_(worker) {}

    void at(std::int64_t env, std::int64_t now) {
        worker_->since.store(now, std::memory_order_relaxed);
        // SYNC: release pairs with the loads in Counters.at_work (Python), which looks for late
        // envs: it reads env, then since, and so never takes an env for older than it is.
        worker_->env.store(env, std::memory_order_release);
    }
    void idle(std::int64_t now) { at(WorkerMeter::kNone, now); }
    // Prefetches what stepped() will write while the env steps: with many envs it is not cached.
    void expect_step(std::size_t env) const {
        const auto* begin = reinterpret_cast<const char*>(&envs_[env].steps);
        __builtin_prefetch(begin, 1);
        __builtin_prefetch(begin + 64, 1);  // the buckets from 4 to 64 us
    }
    void stepped(std::size_t env, std::int64_t ns) { envs_[env].steps.add(ns); }
    void was_reset(std::size_t env, std::int64_t ns) { envs_[env].resets.add(ns); }
    // The same for a call with a beginning and an end, which is traced too.
    void stepped(std::size_t env, std::int64_t began, std::int64_t ended) {
        stepped(env, ended - began);
        trace(TraceKind::kStep, env, began, ended);
    }
    void was_reset(std::size_t env, std::int64_t began, std::int64_t ended) {
        was_reset(env, ended - began);
        trace(TraceKind::kReset, env, began, ended);
    }
    void waited(const WaitStats& stats) { worker_->waits = stats; }

    // Traces to this track from now on; null turns tracing off.
    void trace_to(std::shared_ptr<Track> track) { track_ = std::move(track); }
    const std::shared_ptr<Track>& track() const { return track_; }

 private:
    void trace(TraceKind kind, std::size_t env, std::int64_t began, std::int64_t ended) {
        if (track_) track_->add(kind, static_cast<std::uint32_t>(env), began, ended);
    }

    EnvMeter* envs_;
    WorkerMeter* worker_;
    std::shared_ptr<Track> track_;
};

}  // namespace pysampler
