// Sends commands from a pool's parent to one worker, each with its message if it has one.
//
// A command goes into the worker's command ring, its message into the worker's inbox, a byte ring.
// The command goes first: the worker then reads the message while the rest of it is written, so a
// message may be larger than the inbox. Commands that find no room are kept, in order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "byte_ring.h"
#include "command.h"
#include "ring.h"
#include "wait.h"

namespace pysampler {

// A wait policy that checks once and never waits.
struct NoWait {
    template <class Ready, class Park>
    Outcome wait(std::int64_t, Ready&& ready, Park&&, Others = {}) {
        return ready() ? Outcome::kReady : Outcome::kTimedOut;
    }
};

// A byte ring from the parent to a worker (byte_ring.h: `bytes` is mapped twice in a row).
template <class Os>
struct BasicInbox {
    BasicRingCell<Os>* cell;
    std::byte* bytes;
    std::uint64_t capacity;
};

template <class Os>
class BasicCommandSender {
    using Cell = BasicRingCell<Os>;

 public:
    using Commands = typename BasicPoolParts<Os>::Commands;
    using Inbox = BasicInbox<Os>;

    // Constructs the shared rings.
    BasicCommandSender(const Commands& commands, const Inbox& inbox, const RingGeometry& geometry)
        : commands_at_(commands),
          inbox_at_(inbox),
          commands_(new (commands.cell) Cell, geometry),
          inbox_(new (inbox.cell) Cell, inbox.bytes, inbox.capacity) {}

    // Constructs the shared rings anew for a new process and drops what was not sent. The old
    // process must be dead.
    void renew() {
        unsent_.clear();
        notes_.clear();
        commands_ = BasicRing<Os>(new (commands_at_.cell) Cell, commands_.geometry());
        inbox_ = BasicByteRing<Os>(new (inbox_at_.cell) Cell, inbox_at_.bytes, inbox_at_.capacity);
    }

    // See BasicPool::on_death().
    auto on_death() const {
        return [commands = commands_at_.cell, inbox = inbox_at_.cell] {
            commands->head.mark_lost();
            inbox->head.mark_lost();
        };
    }

    // Queues a note before the next command. May be called while another thread is in deliver().
    void note(std::string message) { notes_.push_back(std::move(message)); }

    // Sends the queued notes now, or keeps them; never waits. Throws CorruptRing. `group`: one of
    // the worker's.
    void send_notes(std::uint32_t group) {
        keep_notes(group);
        deliver_some();
    }

    // Sends the command or keeps it; never waits. Throws CorruptRing.
    void send(const Command& command, const std::optional<std::string>& message) {
        keep_notes(command.group);
        if (!message && unsent_.empty() && publish(command)) return;
        keep({command, message.has_value(), message.value_or("")});
    }

    // Sends a command without a message, and leaves it to others to wake the worker.
    void send_unwoken(const Command& command) {
        if (!unsent_.empty() || !publish(command, true)) keep({command});
    }

    // Whether no note or command is kept.
    bool empty() const noexcept { return unsent_.empty() && notes_.empty(); }
    // Whether the worker sleeps. A hint, out of date at once.
    bool sleeps() const noexcept { return commands_at_.cell->tail.armed(); }

    // Waits until every kept command was sent. kLost if the worker is lost. Throws CorruptRing.
    // After kInterrupted nothing was touched since the interrupt.
    template <class Policy>
    Outcome deliver(std::int64_t deadline, Policy& policy) {
        while (!unsent_.empty()) {
            Parcel& parcel = unsent_.front();
            if (!parcel.published) {
                const Outcome outcome = commands_.wait_room(1, deadline, policy);
                if (outcome != Outcome::kReady) return outcome;
                if (!publish(parcel.command)) {
                    throw CorruptRing(
                        "cannot send to pool: the positions of a worker's command ring "
                        "are garbage");
                }
                parcel.published = true;
            }
            if (parcel.has_message) {
                const Outcome outcome = inbox_.write(std::as_bytes(std::span(parcel.message)),
                                                     parcel.written, deadline, policy);
                if (outcome != Outcome::kReady) return outcome;
            }
            unsent_.pop_front();
        }
        return Outcome::kReady;
    }

    // How many commands are kept, wholly or in part.
    std::size_t unsent() const noexcept { return unsent_.size(); }

 private:
    struct Parcel {
        Command command{};
        bool has_message = false;
        std::string message{};
        bool published = false;     // the command
        std::uint64_t written = 0;  // of the message
    };

    void keep(Parcel parcel) {
        unsent_.push_back(std::move(parcel));
        deliver_some();
    }

    // What fits now.
    void deliver_some() {
        NoWait look;
        deliver(0, look);
    }

    void keep_notes(std::uint32_t group) {
        for (std::string& note : notes_) {
            unsent_.push_back({{Command::kNote, false, 1, group, 0, 0}, true, std::move(note)});
        }
        notes_.clear();
    }

    // `unwoken`: another thread wakes the worker.
    bool publish(const Command& command, bool unwoken = false) {
        const Run run = commands_.claim(1);
        if (run.count == 0) return false;
        // SYNC: publish() releases the slot to next() in pool_worker.h. The thread that wakes the
        // worker instead has acquired a command that was published later.
        commands_at_.slots[run.first] = command;
        unwoken ? commands_.publish_unwoken(1) : commands_.publish(1);
        return true;
    }

    Commands commands_at_;
    Inbox inbox_at_;
    BasicRing<Os> commands_;
    BasicByteRing<Os> inbox_;
    std::deque<Parcel> unsent_;
    std::vector<std::string> notes_;
};

using Inbox = BasicInbox<Linux>;
using CommandSender = BasicCommandSender<Linux>;

}  // namespace pysampler
