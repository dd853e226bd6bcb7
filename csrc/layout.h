// The layout that every process that maps a segment must agree on: line size, header, versions.
// If you change anything here, or the size of a cell asserted in tests/native/test_layout.cpp,
// increase kLayoutVersion: processes with another build then refuse to attach.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace pysampler {

static_assert(std::endian::native == std::endian::little,
              "a futex compares the low half of a 64-bit position: little-endian only");
static_assert(sizeof(void*) == 8, "positions and segments are 64-bit");

// Two 64-byte lines: adjacent-line prefetchers of x86 take lines in pairs, and some Arm
// cores have 128-byte lines. Words that two processes write never share one.
inline constexpr std::size_t kLine = 128;

inline constexpr std::uint32_t kLayoutVersion = 1;
inline constexpr std::uint64_t kMagic = 0x72'6c'70'6d'61'73'79'70;  // "pysamplr" in memory

//   0        8         12        16     24    32            128
//   | magic  | version | creator | size | id  | (reserved)   | cells, which share no cache line ...
struct SegmentHeader {
    std::uint64_t magic;
    std::uint32_t version;
    std::uint32_t creator;  // pid, for debugging
    std::uint64_t size;     // of the whole segment, in bytes
    std::uint64_t id;       // random, the same in every process
    std::byte reserved[96];
};

constexpr std::size_t round_up(std::size_t n, std::size_t to) { return (n + to - 1) / to * to; }

}  // namespace pysampler
