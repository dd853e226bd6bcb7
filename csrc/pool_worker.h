// A worker's end of its pool's commands and completions; pool.h is the parent's, with the protocol.
#pragma once

#include <cstdint>
#include <optional>

#include "command.h"
#include "doorbell.h"
#include "ring.h"
#include "wait.h"

namespace pysampler {

// One thread.
template <class Os>
class BasicPoolWorker {
 public:
    BasicPoolWorker(const BasicPoolParts<Os>& parts, std::uint32_t worker)
        : parts_(parts),
          worker_(worker),
          commands_at_(parts.commands[worker]),
          commands_(commands_at_.cell, parts.geometry),
          completions_(parts.completions),
          bell_(parts.bell, parts.members, parts.groups) {}

    // The next command, if any. Its message, if it has one, follows in the inbox. Wakes the workers
    // that the parent has left to this one, see pool.h.
    std::optional<Command> next() {
        const Run run = commands_.peek(1);
        if (run.count == 0) return std::nullopt;
        // SYNC: peek() acquires the slot from publish() in command_sender.h; release() gives it
        // back to the claim() there.
        const Command command = commands_at_.slots[run.first];
        commands_.release(1);
        if (command.relays) parts_.wake_below(worker_);
        return command;
    }

    // Waits for a command. kLost if there is none and the parent is lost.
    template <class Policy>
    Outcome wait(std::int64_t deadline, Policy& policy) noexcept {
        return commands_.wait_ready(1, deadline, policy);
    }

    // The group's command is done at `now`, in ns. `message`: one follows in the outbox. False if
    // the group had no command in flight or was marked lost.
    bool complete(std::uint32_t group, bool message, std::int64_t now) {
        // SYNC: post() releases the completion to the parent's wait, which acquires the state.
        completions_[group] = Completion{message ? 1U : 0U};
        return bell_.post(group, now);
    }

    // No further commands come: wait() returns kLost once none is left. Any thread may call this.
    void end_commands() noexcept { commands_.mark_producer_lost(); }

    std::uint32_t groups() const noexcept { return bell_.members(); }
    // How many more completions the sleeping parent waits for.
    std::uint64_t wanted() const noexcept { return bell_.wanted(); }
    std::uint64_t waiter() const noexcept { return commands_at_.cell->tail.waiter(); }

 private:
    BasicPoolParts<Os> parts_;
    std::uint32_t worker_;
    typename BasicPoolParts<Os>::Commands commands_at_;
    BasicRing<Os> commands_;
    typename Os::template Plain<Completion>* completions_;
    BasicDoorbell<Os> bell_;
};

using PoolWorker = BasicPoolWorker<Linux>;

}  // namespace pysampler
