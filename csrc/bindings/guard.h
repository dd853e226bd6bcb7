// The entries of a guard: each is the context of a call in which only one thread uses an object.
//
// Python runs signal handlers between any two of its instructions, so a lock taken and released in
// Python code stays locked if a handler raises in between. Here each happens inside one call, which
// `with` makes without checking for signals. Python 3.14 checks after __enter__, before the block
// begins: if a handler raises there, __exit__ is not called, and the entry ends when it is freed.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "process.h"
#include "support.h"

namespace pysampler::bindings {

// Owner: any thread enters; what is not atomic belongs to the holder.
struct GuardState {
    std::string thing;           // its name in errors: "this vector env"
    std::string closed_message;  // of the error that an entry after close() raises
    py::object closed_error;     // the type of that error
    pid_t owner = pid_of(self_id());
    std::atomic<std::uint64_t> holder{0};  // its self_id(), or 0
    // The self_id() of the thread whose results are on their way to its caller, or 0.
    std::atomic<std::uint64_t> keeper{0};
    std::string doing;  // the name of the holder's call; only its thread reads
    std::atomic<std::uint64_t> entries{0};
    std::atomic<bool> closed{false};
    bool closed_within = false;  // by a signal handler in the holder's own thread

    // A call that closes may be repeated, say after an interrupt.
    bool refuses(bool closing) const { return closed && !closing; }
    [[noreturn]] void refuse(const std::string& message) const {
        const py::object error = closed_error(message);
        PyErr_SetObject(closed_error.ptr(), error.ptr());
        throw py::error_already_set();
    }
};

// Owner: any thread, which has it to itself while it is inside.
class Entry {
 public:
    Entry(std::shared_ptr<GuardState> guard, std::string what, bool closing)
        : guard_(std::move(guard)), what_(std::move(what)), closing_(closing) {}
    Entry(Entry&&) = default;  // before it is entered
    Entry& operator=(Entry&&) = delete;
    ~Entry() {
        // SYNC: pairs with the exchange in enter(), as in exit().
        if (held_) guard_->holder.store(0, std::memory_order_release);
    }

    void enter() {
        GuardState& guard = *guard_;
        if (pid_of(self_id()) != guard.owner) {
            guard.refuse("cannot " + what_ + ": made by process " + std::to_string(guard.owner) +
                         ", this is " + std::to_string(pid_of(self_id())) + ", a fork");
        }
        if (guard.refuses(closing_)) guard.refuse(guard.closed_message);
        const std::uint64_t self = self_id();
        std::uint64_t holder = 0;
        // SYNC: pairs with the store in exit(): this holder sees what the last one did.
        if (guard.holder.compare_exchange_strong(holder, self, std::memory_order_acquire,
                                                 std::memory_order_relaxed)) {
            // SYNC: pairs with the CAS in returned(): the results have reached their caller.
            const std::uint64_t keeper = guard.keeper.load(std::memory_order_acquire);
            if (keeper != 0 && keeper != self && !closing_) {
                guard.holder.store(0, std::memory_order_release);
                refuse_second();
            }
            // Without Python's lock, another thread may have closed it and left meanwhile.
            if (guard.refuses(closing_)) {
                guard.holder.store(0, std::memory_order_release);
                guard.refuse(guard.closed_message);
            }
            guard.doing = what_;
            guard.entries.fetch_add(1, std::memory_order_relaxed);
            nested_ = false;
            held_ = true;
        } else if (closing_ && holder == self) {
            nested_ = true;
        } else if (holder == self) {
            raise("BusyError", "cannot " + what_ + ": this thread is already using it (" +
                                   guard.doing + "); a signal handler may only close it");
        } else {
            refuse_second();
        }
    }

    // This thread has read results, until returned(). It leaves the guard before its caller has
    // them, but other threads may only close the object meanwhile: they would take the results for
    // those of an interrupted call.
    void keeps() { guard_->keeper.store(self_id(), std::memory_order_relaxed); }
    void returned() {
        std::uint64_t self = self_id();
        guard_->keeper.compare_exchange_strong(self, 0, std::memory_order_release,
                                               std::memory_order_relaxed);
    }
    void keeps_nothing() { guard_->keeper.store(0, std::memory_order_relaxed); }

    void exit(const py::handle& type) {
        GuardState& guard = *guard_;
        if (nested_) {
            guard.closed_within = guard.closed;
            return;
        }
        const bool closed_within = std::exchange(guard.closed_within, false);
        held_ = false;
        if (!type.is_none()) returned();  // any thread may read the results again
        guard.holder.store(0, std::memory_order_release);
        // If a call failed because a signal handler closed the object, the error says so.
        if (closed_within && !type.is_none() &&
            PyErr_GivenExceptionMatches(type.ptr(), PyExc_Exception) != 0 &&
            PyErr_GivenExceptionMatches(type.ptr(), guard.closed_error.ptr()) == 0) {
            guard.refuse("cannot " + what_ + ": it was closed meanwhile");
        }
    }

    bool nested() const { return nested_; }
    // How many calls have entered the guard, through this entry or another.
    std::uint64_t entries() const { return guard_->entries; }

 private:
    [[noreturn]] void refuse_second() const {
        raise("BusyError", "cannot " + what_ + ": another thread is using " + guard_->thing);
    }

    std::shared_ptr<GuardState> guard_;
    std::string what_;
    bool closing_;
    bool nested_ = false;
    bool held_ = false;  // entered, and not left
};

template <>
inline constexpr bool is_bound<Entry> = true;

}  // namespace pysampler::bindings
