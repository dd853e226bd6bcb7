// Versioned parameters: one writer publishes, any number of readers copy the newest version.
// Readers never block the writer and never get a mixture of two versions.
//
//   version:  OpenPosition (readers may wait for the next)     buffer v % n:  stamp | contents
//
// Version v goes to buffer v % n; the stamp is 2v - 1 while it is written and 2v when it is whole.
// A reader copies the newest version and then reads the stamp again: if the writer has published
// n - 1 versions meanwhile, the reader discards the copy and tries again. A writer that dies
// half-way leaves an odd stamp in a buffer that no published version names.
//
// The words are copied as atomics, since a memcpy would be a data race. Each is stored with release
// and loaded with acquire, so a reader that got one word of a newer version sees, when it reads the
// stamp again, the stamp that was stored before that word. On x86 these are ordinary moves.
#pragma once

#include <cstdint>
#include <span>

#include "layout.h"
#include "position.h"
#include "wait.h"

namespace pysampler {

template <class Os>
struct BasicBoardCell {
    BasicPosition<Os, Waiters::kMany> version;
};

template <class Os>
class BasicBoard {
    template <class T>
    using Atomic = typename Os::template Atomic<T>;

 public:
    using Cell = BasicBoardCell<Os>;
    struct Stamp {
        alignas(kLine) Atomic<std::uint64_t> value{0};
    };

    // `words` is buffers x words_each long.
    BasicBoard(Cell* cell, Stamp* stamps, Atomic<std::uint64_t>* words, std::uint32_t buffers,
               std::uint64_t words_each)
        : cell_(cell), stamps_(stamps), words_(words), buffers_(buffers), words_each_(words_each) {}

    std::uint64_t version() const noexcept { return cell_->version.load(); }
    std::uint64_t words_each() const noexcept { return words_each_; }
    std::uint32_t buffers() const noexcept { return buffers_; }

    // The writer calls begin(), write() any number of times, then publish(). begin() returns the
    // number that the version will have.
    std::uint64_t begin() noexcept {
        const std::uint64_t next = cell_->version.own() + 1;
        // Relaxed: each word written after it releases it.
        stamp(next).store(2 * next - 1, std::memory_order_relaxed);
        return next;
    }
    void write(std::uint64_t at, std::span<const std::uint64_t> words) noexcept {
        Atomic<std::uint64_t>* to = buffer(cell_->version.own() + 1) + at;
        for (std::size_t i = 0; i < words.size(); ++i) {
            // SYNC: pairs with the load of each word in read(): with the word comes the odd stamp.
            to[i].store(words[i], std::memory_order_release);
        }
    }
    std::uint64_t publish() noexcept {
        const std::uint64_t next = cell_->version.own() + 1;
        // SYNC: pairs with the first load of the stamp in read().
        stamp(next).store(2 * next, std::memory_order_release);
        if (cell_->version.advance(1)) cell_->version.wake();
        return next;
    }

    // A reader: copies the newest version and returns its number, or 0 if none was published yet or
    // the writer overwrote it during each of `tries` attempts.
    std::uint64_t read(std::uint64_t at, std::span<std::uint64_t> words,
                       int tries = kTries) const noexcept {
        for (int i = 0; i < tries; ++i) {
            const std::uint64_t version = this->version();
            if (version == 0) return 0;
            const Atomic<std::uint64_t>& stamp = this->stamp(version);
            // SYNC: pairs with the store of the stamp in publish().
            if (stamp.load(std::memory_order_acquire) != 2 * version) continue;
            const Atomic<std::uint64_t>* from = buffer(version) + at;
            for (std::size_t k = 0; k < words.size(); ++k) {
                // SYNC: pairs with the store in write().
                words[k] = from[k].load(std::memory_order_acquire);
            }
            // Relaxed: the loads above keep it behind them.
            if (stamp.load(std::memory_order_relaxed) == 2 * version) return version;
        }
        return 0;
    }

    // Readers, any number: waits until the version is at least `wanted`.
    template <class Policy>
    Outcome wait_version(std::uint64_t wanted, std::int64_t deadline, Policy& policy) noexcept {
        return cell_->version.wait_until(wanted, deadline, policy);
    }

    void mark_writer_lost() noexcept { cell_->version.mark_lost(); }
    bool writer_lost() const noexcept { return cell_->version.lost(); }
    void clear_lost() noexcept { cell_->version.clear_lost(); }

 private:
    static constexpr int kTries = 1000;

    Atomic<std::uint64_t>& stamp(std::uint64_t version) const noexcept {
        return stamps_[version % buffers_].value;
    }
    Atomic<std::uint64_t>* buffer(std::uint64_t version) const noexcept {
        return words_ + version % buffers_ * words_each_;
    }

    Cell* cell_;
    Stamp* stamps_;
    Atomic<std::uint64_t>* words_;
    std::uint32_t buffers_;
    std::uint64_t words_each_;
};

using BoardCell = BasicBoardCell<Linux>;
using Board = BasicBoard<Linux>;

}  // namespace pysampler
