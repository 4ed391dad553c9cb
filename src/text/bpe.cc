// Two ways to the same tokens: words are nearly always short, where scanning all ranks for the
// lowest beats any structure; a long word would make that quadratic and takes a queue instead.
#include "text/bpe.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <queue>
#include <utility>

namespace deepinfer::text {
namespace {

constexpr std::size_t kShortWord = 48;  // in bytes; the two ways cost the same near 50

constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();

// A word as a doubly linked list over its first positions; a merge removes its right node.
struct Node {
  std::int32_t id;
  std::uint32_t previous;
  std::uint32_t next;
};

// Rank above position in one number, so that the order of numbers is the order of merging.
constexpr std::uint64_t queue_key(std::uint32_t rank, std::uint32_t position) noexcept {
  return (std::uint64_t{rank} << 32) | position;
}

}  // namespace

MergeTable::MergeTable(std::size_t num_merges) {
  const std::size_t num_slots = std::bit_ceil(std::max<std::size_t>(2 * num_merges, 2));
  slots_.resize(num_slots);
  shift_ = 64 - std::countr_zero(num_slots);
}

std::size_t MergeTable::index_of(std::int32_t left, std::int32_t right) const noexcept {
  // Fibonacci hashing: 2^64 / golden ratio spreads neighbouring keys; the top bits are the best.
  constexpr std::uint64_t kGolden = 0x9E3779B97F4A7C15U;
  const std::uint64_t key =
      (std::uint64_t{static_cast<std::uint32_t>(left)} << 32) | static_cast<std::uint32_t>(right);
  std::size_t i = static_cast<std::size_t>((key ^ (key >> 29)) * kGolden >> shift_);
  while (slots_[i].left >= 0 && (slots_[i].left != left || slots_[i].right != right)) {
    i = (i + 1) & (slots_.size() - 1);
  }
  return i;
}

bool MergeTable::insert(const Merge& merge, std::uint32_t rank) {
  Slot& slot = slots_[index_of(merge.left, merge.right)];
  if (slot.left >= 0) return false;
  slot = Slot{merge.left, merge.right, rank, merge.merged};
  return true;
}

Bpe::Bpe(const ByteTokens& byte_tokens, MergeTable merges)
    : byte_tokens_(byte_tokens), merges_(std::move(merges)) {}

void Bpe::encode(std::string_view word, std::vector<std::int32_t>& out) const {
  std::int32_t short_ids[kShortWord];
  std::vector<std::int32_t> long_ids(word.size() > kShortWord ? word.size() : 0);
  const bool is_short = long_ids.empty();
  std::int32_t* ids = is_short ? short_ids : long_ids.data();
  std::size_t num_ids = 0;
  for (const char c : word) {
    const std::int32_t id = byte_tokens_[static_cast<unsigned char>(c)];
    if (id >= 0) ids[num_ids++] = id;
  }
  is_short ? merge_short({ids, num_ids}, out) : merge_long({ids, num_ids}, out);
}

void Bpe::merge_short(std::span<std::int32_t> ids, std::vector<std::int32_t>& out) const {
  const MergeTable::Slot* merges[kShortWord];  // merges[i]: of ids[i] and ids[i + 1]
  std::size_t n = ids.size();
  for (std::size_t i = 0; i + 1 < n; ++i) merges[i] = &merges_.find(ids[i], ids[i + 1]);
  while (n > 1) {
    std::size_t best = 0;
    for (std::size_t i = 1; i + 1 < n; ++i) {
      if (merges[i]->rank < merges[best]->rank) best = i;
    }
    if (merges[best]->rank == MergeTable::kNoRank) break;
    ids[best] = merges[best]->merged;
    for (std::size_t i = best + 1; i + 1 < n; ++i) {
      ids[i] = ids[i + 1];
      merges[i - 1] = merges[i];
    }
    --n;
    if (best > 0) merges[best - 1] = &merges_.find(ids[best - 1], ids[best]);
    if (best + 1 < n) merges[best] = &merges_.find(ids[best], ids[best + 1]);
  }
  out.insert(out.end(), ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(n));
}

void Bpe::merge_long(std::span<std::int32_t> ids, std::vector<std::int32_t>& out) const {
  if (ids.empty()) return;
  const auto n = static_cast<std::uint32_t>(ids.size());
  std::vector<Node> nodes(n);
  for (std::uint32_t i = 0; i < n; ++i) {
    nodes[i] = Node{ids[i], i == 0 ? kNone : i - 1, i + 1 == n ? kNone : i + 1};
  }
  std::vector<std::uint64_t> keys;
  keys.reserve(2 * ids.size());
  std::priority_queue<std::uint64_t, std::vector<std::uint64_t>, std::greater<>> queue(
      std::greater<>(), std::move(keys));
  const auto offer = [&](std::uint32_t left) {
    if (left == kNone || nodes[left].next == kNone) return;
    const std::uint32_t rank = merges_.find(nodes[left].id, nodes[nodes[left].next].id).rank;
    if (rank != MergeTable::kNoRank) queue.push(queue_key(rank, left));
  };
  for (std::uint32_t i = 0; i < n; ++i) offer(i);
  while (!queue.empty()) {
    const std::uint64_t key = queue.top();
    queue.pop();
    const auto left = static_cast<std::uint32_t>(key);
    const std::uint32_t right = nodes[left].next;
    // Entries are not removed when a neighbour changes; an outdated one is known by its rank.
    if (nodes[left].id < 0 || right == kNone) continue;
    const MergeTable::Slot& merge = merges_.find(nodes[left].id, nodes[right].id);
    if (merge.rank == MergeTable::kNoRank || queue_key(merge.rank, left) != key) continue;
    nodes[left].id = merge.merged;
    nodes[left].next = nodes[right].next;
    if (nodes[left].next != kNone) nodes[nodes[left].next].previous = left;
    nodes[right].id = -1;
    offer(nodes[left].previous);
    offer(left);
  }
  for (std::uint32_t i = 0; i != kNone; i = nodes[i].next) out.push_back(nodes[i].id);
}

}  // namespace deepinfer::text
