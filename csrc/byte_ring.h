// A ring of bytes from one producer to one consumer, for messages of any size.
//
//   record:  | length:32 | kind:32 | payload ... | padding to 8 |
//
// The bytes are mapped twice in a row (segment.h, map_twice), so a record never breaks at the end
// of the array. A message that does not fit is sent in parts, each a record; the reader drains them
// inside its own wait, so the two sides never wait for each other while the ring is full. Advancing
// the tail is the commit. A message whose writer died or gave up half-way is dropped when the next
// one begins: `kind` says where a message begins and ends.
//
// The reader trusts nothing: it copies the header once and checks it against the published bytes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "layout.h"
#include "ring.h"
#include "wait.h"

namespace pysampler {

class CorruptRing : public std::runtime_error {
 public:
    using std::runtime_error::runtime_error;
};

template <class Os>
class BasicByteRing {
    struct Header {
        std::uint32_t length;
        std::uint32_t kind;
    };
    enum Kind : std::uint32_t { kBegins = 1, kEnds = 2 };

    static constexpr std::uint64_t kAlign = 8;

 public:
    using Cell = BasicRingCell<Os>;
    using Bytes = std::span<const std::byte>;

    // `bytes` is the array, mapped twice: bytes[i] and bytes[i + capacity] are the same byte.
    BasicByteRing(Cell* cell, std::byte* bytes, std::uint64_t capacity)
        : cell_(cell), bytes_(bytes), capacity_(capacity) {}

    std::uint64_t capacity() const noexcept { return capacity_; }
    // The largest message that is sent as one record.
    std::uint64_t largest_whole() const noexcept { return capacity_ - sizeof(Header); }

    // -- the producer --

    // Sends the message, whole or in parts. On kTimedOut, kLost or kInterrupted `written` says how
    // much of it was sent: 0 if it fits the ring. Otherwise call again with the same `written` to
    // continue, or begin another message: the reader then drops the incomplete one.
    template <class Policy>
    Outcome write(Bytes message, std::uint64_t& written, std::int64_t deadline, Policy& policy) {
        const bool whole = message.size() <= largest_whole();
        // A part takes half the ring, so the reader can empty one while the next is written.
        const std::uint64_t most = whole ? message.size() : capacity_ / 2 - sizeof(Header);
        do {
            const std::uint64_t length = std::min(message.size() - written, most);
            const std::uint64_t need = record_bytes(length);
            const std::uint64_t tail = cell_->tail.own();
            const Outcome outcome =
                cell_->head.wait_until(tail + need - capacity_, deadline, policy);
            if (outcome != Outcome::kReady) return outcome;
            const Header header{
                static_cast<std::uint32_t>(length),
                (written == 0 ? kBegins : 0U) | (written + length == message.size() ? kEnds : 0U)};
            std::byte* at = bytes_ + (tail & (capacity_ - 1));
            std::memcpy(at, &header, sizeof header);
            if (length > 0) std::memcpy(at + sizeof header, message.data() + written, length);
            written += length;
            cell_->tail.post(need);
        } while (written < message.size());
        return Outcome::kReady;
    }

    // -- the consumer --

    // Waits for a whole message, draining parts as they come. message() is then a view of it: in
    // the ring, or in the reader's own memory if it came in parts. It is valid until release().
    // Throws CorruptRing, and std::length_error if the message is larger than `limit`.
    template <class Policy>
    Outcome read(std::uint64_t limit, std::int64_t deadline, Policy& policy) {
        for (;;) {
            if (whole_.data() != nullptr) return Outcome::kReady;
            const std::uint64_t head = cell_->head.own();
            const Outcome outcome = cell_->tail.wait_until(head + 1, deadline, policy);
            if (outcome != Outcome::kReady) return outcome;
            const std::uint64_t there = Position::distance(head, cell_->tail.load());
            const std::byte* at = bytes_ + (head & (capacity_ - 1));
            Header header;
            std::memcpy(&header, at, sizeof header);
            const std::uint64_t record = record_bytes(header.length);
            if (there > capacity_ || there < sizeof header || record > there || header.kind > 3) {
                throw CorruptRing(
                    "cannot read byte ring: it is corrupt, a record does not match the published "
                    "bytes");
            }
            if (header.kind & kBegins) parts_.clear();
            const bool stray = parts_.empty() && !(header.kind & kBegins);
            if (!stray && parts_.size() + header.length > limit) {
                cell_->head.post(record);
                parts_.clear();
                throw std::length_error("a message is larger than the reader's limit");
            }
            const Bytes payload(at + sizeof header, header.length);
            if (header.kind == (kBegins | kEnds)) {
                whole_ = payload;
                held_ = record;
                return Outcome::kReady;
            }
            if (!stray) parts_.insert(parts_.end(), payload.begin(), payload.end());
            cell_->head.post(record);
            if (!stray && (header.kind & kEnds)) whole_ = parts_;
        }
    }

    Bytes message() const noexcept { return whole_; }

    void release() noexcept {
        if (whole_.data() == nullptr) return;  // the parts so far stay
        whole_ = {};
        if (held_ > 0) cell_->head.post(std::exchange(held_, 0));
        parts_.clear();
    }

    // -- any thread --

    // Bytes published and not released, headers and padding included.
    std::uint64_t size() const noexcept {
        const std::uint64_t head = cell_->head.load();
        return std::min(Position::distance(head, cell_->tail.load()), capacity_);
    }
    void mark_producer_lost() noexcept { cell_->tail.mark_lost(); }
    void mark_consumer_lost() noexcept { cell_->head.mark_lost(); }
    bool producer_lost() const noexcept { return cell_->tail.lost(); }
    bool consumer_lost() const noexcept { return cell_->head.lost(); }
    void clear_lost() noexcept {
        cell_->tail.clear_lost();
        cell_->head.clear_lost();
    }

 private:
    static constexpr std::uint64_t record_bytes(std::uint64_t length) noexcept {
        return round_up(sizeof(Header) + length, kAlign);
    }

    Cell* cell_;
    std::byte* bytes_;
    std::uint64_t capacity_;  // a power of two, and whole pages
    Bytes whole_;             // what message() returns
    std::uint64_t held_ = 0;  // bytes of its record, if it is in the ring
    std::vector<std::byte> parts_;
};

using ByteRing = BasicByteRing<Linux>;

}  // namespace pysampler
