// Looks at a stretch of one tensor's bytes: fast where all is well, which is nearly everywhere, and
// one element at a time where something was found.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "deepinfer/checkpoint.h"
#include "deepinfer/verify.h"
#include "deepinfer/weight_map.h"

namespace deepinfer::models {

/// An element, by its number in the tensor; a scale by its number in the stored grid, which may
/// have padding; a block (kZeroBlock) by its number in the grid. Matrices of a stack follow each
/// other.
struct ElementPlace {
  std::int64_t number;
  std::uint64_t bits;
};

struct Tally {
  static constexpr std::int64_t kPlaces = 4;  // enough to see a pattern

  std::int64_t count = 0;
  std::int64_t infinite = 0;                     // of them
  std::int64_t negative = 0;                     // of the scales of kBadScale, -infinity too
  std::array<ElementPlace, kPlaces> first = {};  // min(count, kPlaces) of them

  void add(std::int64_t number, std::uint64_t bits) {
    if (count < kPlaces) first[static_cast<std::size_t>(count)] = {number, bits};
    ++count;
  }

  /// Adds what was found behind it.
  void add(const Tally& later);
};

using Tallies = std::array<Tally, kNumFindingKinds>;

/// A tensor and what its bytes are.
struct ScannedTensor {
  enum class Role : std::uint8_t { kCodes, kScales, kTensorScale, kOther };

  const Tensor* tensor = nullptr;
  Role role = Role::kOther;
  const MappedWeight* weight = nullptr;  ///< of all roles but kOther

  /// Where a stretch that begins at `begin`, the end of another one or 0, may end: after about
  /// `bytes` of them, and so that blocks of codes and the rows of scales that are compared with
  /// each other stay whole.
  std::int64_t end_of_stretch(std::int64_t begin, std::int64_t bytes) const noexcept;

  /// Whether these are codes in blocks that share a scale.
  bool has_blocks() const noexcept;

  /// Whether these are scales of single rows, 32 k-values each, which other engines may want to
  /// share among 32 rows.
  bool has_scale_per_row() const noexcept;

  /// Bytes of one scale; the tensor's elements may hold several.
  std::int64_t scale_size() const noexcept;

 private:
  std::int64_t group_bytes() const noexcept;
  std::int64_t unit_bytes() const noexcept;
};

/// All tensors of a checkpoint, in its order.
std::vector<ScannedTensor> scanned_tensors(const Checkpoint& checkpoint, const WeightMap& map);

/// Elements of the bytes [begin, end) of a tensor, which may be any whole elements.
void scan_elements(const ScannedTensor& scanned, std::int64_t begin, std::int64_t end,
                   Tallies& tallies);

/// Blocks of codes, and scales beside each other, in a stretch of a tensor.
void scan_blocks(const ScannedTensor& scanned, std::int64_t begin, std::int64_t end,
                 Tallies& tallies);

}  // namespace deepinfer::models
