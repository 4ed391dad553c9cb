// The pair order of docs/determinism.md, and the index tables that follow from it.
#pragma once

#include <cstdint>

#include "kernels/kernel.h"

namespace deepinfer::kernels {

/// The two k-values of a step; `hi` is added first, as vdpbf16ps adds the odd element first.
struct Pair {
  int lo;
  int hi;
};

/// Pair `step` (0..15) of a block. The strides are those of codes inside one 32-bit word: four
/// bytes (e4m3fn) or eight nibbles (e2m1), so that a kernel gets pairs by shifts alone.
static constexpr Pair block_pair(Element element, int step) {
  if (element == Element::kE4m3fn) {
    const int j = step / 2;
    const int i = step % 2;
    return {4 * j + i, 4 * j + 2 + i};
  }
  const int j = step / 4;
  const int i = step % 4;
  return {8 * j + i, 8 * j + 4 + i};
}

template <int kCount>
struct IndexTable {
  std::uint16_t index[kCount];
};

/// Arrangement for kernels that multiply bf16 pairs: [16 steps][16 lanes][lo, hi].
static constexpr IndexTable<kSuperblock> pair_order(Element element,
                                                    const std::uint8_t* lane_block) {
  IndexTable<kSuperblock> table = {};
  for (int step = 0; step < kSteps; ++step) {
    const Pair pair = block_pair(element, step);
    for (int lane = 0; lane < kLanes; ++lane) {
      const int block = lane_block[lane] * kBlock;
      const int at = (step * kLanes + lane) * 2;
      table.index[at] = static_cast<std::uint16_t>(block + pair.lo);
      table.index[at + 1] = static_cast<std::uint16_t>(block + pair.hi);
    }
  }
  return table;
}

/// Arrangement for kernels that multiply f32 vectors of 8 lanes:
/// [2 groups of lanes][16 steps][hi, lo][8 lanes].
static constexpr IndexTable<kSuperblock> split_order(Element element,
                                                     const std::uint8_t* lane_block) {
  constexpr int kGroup = 8;
  IndexTable<kSuperblock> table = {};
  for (int lane = 0; lane < kLanes; ++lane) {
    const int block = lane_block[lane] * kBlock;
    for (int step = 0; step < kSteps; ++step) {
      const Pair pair = block_pair(element, step);
      const int at = ((lane / kGroup * kSteps + step) * 2) * kGroup + lane % kGroup;
      table.index[at] = static_cast<std::uint16_t>(block + pair.hi);
      table.index[at + kGroup] = static_cast<std::uint16_t>(block + pair.lo);
    }
  }
  return table;
}

/// bf16 weights, f32 vectors of 8 lanes: lane l takes the pair (2l, 2l + 1); per 32 values
/// [2 groups of lanes][hi, lo][8 lanes].
static constexpr IndexTable<kBlock> bf16_split_order() {
  constexpr int kGroup = 8;
  IndexTable<kBlock> table = {};
  for (int lane = 0; lane < kLanes; ++lane) {
    const int at = lane / kGroup * 2 * kGroup + lane % kGroup;
    table.index[at] = static_cast<std::uint16_t>(2 * lane + 1);
    table.index[at + kGroup] = static_cast<std::uint16_t>(2 * lane);
  }
  return table;
}

/// x as it lies.
template <int kCount>
static constexpr IndexTable<kCount> natural_order() {
  IndexTable<kCount> table = {};
  for (int i = 0; i < kCount; ++i) table.index[i] = static_cast<std::uint16_t>(i);
  return table;
}

}  // namespace deepinfer::kernels
