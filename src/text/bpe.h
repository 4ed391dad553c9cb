// Byte pair encoding of one word: start from the tokens of its bytes; while any neighbours have a
// merge, replace the pair of lowest rank (the leftmost of equals) by its merged token.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string_view>
#include <vector>

#include "text/byte_level.h"

namespace deepinfer::text {

struct Merge {
  std::int32_t left;
  std::int32_t right;
  std::int32_t merged;
};

/// Token of each byte, or -1 where the vocabulary has none.
using ByteTokens = std::array<std::int32_t, kNumBytes>;

/// Pair of tokens -> rank and merged token: a flat table with linear probing. It is probed for
/// every pair of neighbours of every word, hence no std::unordered_map.
class MergeTable {
 public:
  static constexpr std::uint32_t kNoRank = std::numeric_limits<std::uint32_t>::max();

  struct Slot {
    std::int32_t left = -1;  // -1: free
    std::int32_t right = -1;
    std::uint32_t rank = kNoRank;
    std::int32_t merged = -1;
  };

  explicit MergeTable(std::size_t num_merges);

  /// False when the pair is there already.
  bool insert(const Merge& merge, std::uint32_t rank);

  /// The slot of the pair, or a free slot with rank kNoRank.
  const Slot& find(std::int32_t left, std::int32_t right) const noexcept {
    return slots_[index_of(left, right)];
  }

  std::size_t memory_bytes() const noexcept { return slots_.capacity() * sizeof(Slot); }

 private:
  std::size_t index_of(std::int32_t left, std::int32_t right) const noexcept;

  std::vector<Slot> slots_;  // a power of two of them, at most half in use
  int shift_ = 0;
};

class Bpe {
 public:
  Bpe(const ByteTokens& byte_tokens, MergeTable merges);

  /// Appends the tokens of `word` (less than 2^32 bytes). A byte that has no token is left out, as
  /// the reference implementation does where the model names no unknown token.
  void encode(std::string_view word, std::vector<std::int32_t>& out) const;

  std::size_t memory_bytes() const noexcept { return merges_.memory_bytes(); }

 private:
  void merge_short(std::span<std::int32_t> ids, std::vector<std::int32_t>& out) const;
  void merge_long(std::span<std::int32_t> ids, std::vector<std::int32_t>& out) const;

  ByteTokens byte_tokens_;
  MergeTable merges_;
};

}  // namespace deepinfer::text
