// The layout of shared memory. Compiling this is the test: a change here requires a new
// kLayoutVersion. Built without access control, since the members are private.
#include <atomic>
#include <cstddef>

#include "board.h"
#include "command.h"
#include "doorbell.h"
#include "flag.h"
#include "layout.h"
#include "position.h"
#include "ring.h"
#include "shared_ring.h"
#include "trace.h"

using namespace pysampler;

static_assert(kLayoutVersion == 1);
static_assert(kLine == 128);
static_assert(kMagic == 0x726c706d61737970);

static_assert(sizeof(SegmentHeader) == 128);
static_assert(alignof(SegmentHeader) == 8);
static_assert(offsetof(SegmentHeader, magic) == 0);
static_assert(offsetof(SegmentHeader, version) == 8);
static_assert(offsetof(SegmentHeader, creator) == 12);
static_assert(offsetof(SegmentHeader, size) == 16);
static_assert(offsetof(SegmentHeader, id) == 24);
static_assert(offsetof(SegmentHeader, reserved) == 32);

using Place = BasicWaiterPlace<Linux>;
static_assert(sizeof(Place) == 128);
static_assert(alignof(Place) == 128);
static_assert(offsetof(Place, id_) == 0);

static_assert(sizeof(Position) == 256);
static_assert(alignof(Position) == 128);
static_assert(sizeof(Position::word_) == 8);
static_assert(offsetof(Position, word_) == 0);
static_assert(offsetof(Position, target_) == 8);
static_assert(offsetof(Position, place_) == 128);
static_assert(Position::kArmed == 1 && Position::kLost == 2 && Position::kUnit == 4);

static_assert(sizeof(OpenPosition) == 256);
static_assert(alignof(OpenPosition) == 128);
static_assert(offsetof(OpenPosition, word_) == 0);
static_assert(OpenPosition::kArmed == 1 && OpenPosition::kLost == 2 && OpenPosition::kUnit == 4);

static_assert(sizeof(Flag) == 384);
static_assert(alignof(Flag) == 128);
static_assert(offsetof(Flag, posts_) == 0);
static_assert(offsetof(Flag, cleared_) == 256);

static_assert(sizeof(Doorbell::Cell) == 256);
static_assert(alignof(Doorbell::Cell) == 128);
static_assert(offsetof(Doorbell::Cell, posts) == 0);
static_assert(sizeof(Doorbell::Member) == 128);
static_assert(alignof(Doorbell::Member) == 128);
static_assert(offsetof(Doorbell::Member, state) == 0);
static_assert(offsetof(Doorbell::Member, posted_at) == 8);
static_assert(Doorbell::kReady == 1 && Doorbell::kLost == 2 && Doorbell::kReported == 4);
static_assert(Doorbell::bytes(3) == 256 + 3 * 128);

static_assert(sizeof(RingCell) == 512);
static_assert(alignof(RingCell) == 128);
static_assert(offsetof(RingCell, tail) == 0);
static_assert(offsetof(RingCell, head) == 256);

static_assert(sizeof(SharedRingCell) == 640);
static_assert(alignof(SharedRingCell) == 128);
static_assert(offsetof(SharedRingCell, published) == 0);
static_assert(offsetof(SharedRingCell, head) == 256);
static_assert(offsetof(SharedRingCell, tail) == 512);
static_assert(SharedRing::kFree == 0 && SharedRing::kClaimed == 1 && SharedRing::kPublished == 2 &&
              SharedRing::kAborted == 3);
static_assert(SharedRing::make(7, 5U << 14 | 3, SharedRing::kClaimed) ==
              (7ULL << 32 | 5ULL << 16 | 3ULL << 2 | 1));
static_assert(SharedRing::Producers::kLost == 1 && SharedRing::Producers::kMax == 1 << 14);
static_assert(SharedRing::Producers::pid(7ULL << 32 | 5ULL << 1) == 7 &&
              SharedRing::Producers::incarnation(7ULL << 32 | 5ULL << 1) == 5);

static_assert(sizeof(BoardCell) == 256);
static_assert(alignof(BoardCell) == 128);
static_assert(offsetof(BoardCell, version) == 0);
static_assert(sizeof(Board::Stamp) == 128);
static_assert(alignof(Board::Stamp) == 128);
static_assert(offsetof(Board::Stamp, value) == 0);

static_assert(sizeof(Command) == 16);
static_assert(offsetof(Command, kind) == 0);
static_assert(offsetof(Command, steps) == 2);
static_assert(offsetof(Command, group) == 4);
static_assert(offsetof(Command, frame) == 8);
static_assert(offsetof(Command, number) == 12);
static_assert(Command::kStep == 0 && Command::kRequest == 1 && Command::kNote == 2 &&
              Command::kChunk == 3 && Command::kChunkLast == 4);
static_assert(sizeof(Completion) == 128);
static_assert(alignof(Completion) == 128);
static_assert(offsetof(Completion, message) == 0);
static_assert(PoolLayout::kCommands == 4096 && PoolLayout::kCommandRing == 512 + 4096 * 16);

static_assert(sizeof(TraceSwitch) == 128);
static_assert(offsetof(TraceSwitch, until) == 0);
static_assert(sizeof(Slice) == 24);
static_assert(offsetof(Slice, begin) == 0 && offsetof(Slice, end) == 8);
static_assert(offsetof(Slice, kind) == 16 && offsetof(Slice, id) == 20);
static_assert(sizeof(TraceSlot) == 32);
static_assert(offsetof(TraceRing, claimed) == 0 && offsetof(TraceRing, slots) == 128);
static_assert(TraceRing::kSlices == 16384);

static_assert(sizeof(std::atomic<std::uint64_t>) == 8);  // an owner, a slot's word, a board's word

int main() { return 0; }
