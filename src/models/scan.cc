// Counting in all threads. Tensors are cut into chunks of a fixed size, so that neither counts nor
// hashes depend on how many threads there are.
#include "deepinfer/scan.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <tuple>

#include "models/scan_bytes.h"
#include "runtime/thread_pool.h"

namespace deepinfer {
namespace {

using models::ScannedTensor;

constexpr std::uint64_t kChunk = std::uint64_t{4} << 20;
constexpr std::uint64_t kSmallestAlias = 4096;  // vectors of ones are equal without a reason

struct Chunk {
  std::size_t tensor;
  std::uint64_t begin;
  std::uint64_t end;
};

/// Whether bytes of a tensor are e8m0 scales.
bool is_e8m0(const ScannedTensor& scanned) {
  if (scanned.role != ScannedTensor::Role::kScales) {
    return scanned.tensor->view.dtype == DType::kF8E8m0;
  }
  return scanned.weight->view.scale_type == ScaleType::kE8m0;
}

ScanCounts counts_of(const ScannedTensor& scanned, const Chunk& chunk) {
  models::Tallies found;
  models::scan_elements(scanned, static_cast<std::int64_t>(chunk.begin),
                        static_cast<std::int64_t>(chunk.end), found);
  const auto of = [&](FindingKind kind) { return found[static_cast<std::size_t>(kind)]; };
  ScanCounts counts;
  for (const FindingKind kind :
       {FindingKind::kNanCode, FindingKind::kNanScale, FindingKind::kNotFinite}) {
    counts.nan += static_cast<std::uint64_t>(of(kind).count - of(kind).infinite);
    counts.infinite += static_cast<std::uint64_t>(of(kind).infinite);
  }
  counts.infinite += static_cast<std::uint64_t>(of(FindingKind::kBadScale).infinite);
  counts.negative_scales = static_cast<std::uint64_t>(of(FindingKind::kBadScale).negative);
  if (is_e8m0(scanned)) {
    counts.e8m0_0 = static_cast<std::uint64_t>(of(FindingKind::kZeroScale).count);
    counts.e8m0_255 = static_cast<std::uint64_t>(of(FindingKind::kNanScale).count);
  }
  return counts;
}

/// FNV-1a over words of 8 bytes: only a first sieve, equality is checked.
std::uint64_t hash_of(const std::uint8_t* bytes, std::uint64_t size, std::uint64_t hash) {
  constexpr std::uint64_t kPrime = 0x100000001b3;
  std::uint64_t word = 0;
  for (std::uint64_t i = 0; i < size; i += sizeof(word)) {
    word = 0;
    std::memcpy(&word, bytes + i, std::min<std::uint64_t>(sizeof(word), size - i));
    hash = (hash ^ word) * kPrime;
  }
  return hash;
}

bool equal(const Tensor& a, const Tensor& b) {
  return std::memcmp(a.view.data, b.view.data, a.view.size_bytes) == 0;
}

/// Groups of equal tensors, by name of the first.
std::vector<std::vector<const Tensor*>> find_identical(const std::vector<Tensor>& tensors,
                                                       const std::vector<std::uint64_t>& hashes) {
  using Key = std::tuple<std::uint64_t, std::uint64_t, DType, std::vector<std::int64_t>>;
  std::map<Key, std::vector<const Tensor*>> sieve;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const TensorView& view = tensors[i].view;
    if (view.size_bytes < kSmallestAlias) continue;
    sieve[{hashes[i], view.size_bytes, view.dtype, view.shape}].push_back(&tensors[i]);
  }
  std::vector<std::vector<const Tensor*>> out;
  for (auto& [key, same] : sieve) {
    const auto differs = [first = same.front()](const Tensor* one) { return !equal(*first, *one); };
    same.erase(std::remove_if(same.begin(), same.end(), differs), same.end());
    if (same.size() > 1) out.push_back(std::move(same));
  }
  std::sort(out.begin(), out.end(),
            [](const auto& a, const auto& b) { return a.front()->name < b.front()->name; });
  return out;
}

}  // namespace

ScanCounts& ScanCounts::operator+=(const ScanCounts& other) noexcept {
  nan += other.nan;
  infinite += other.infinite;
  negative_scales += other.negative_scales;
  e8m0_0 += other.e8m0_0;
  e8m0_255 += other.e8m0_255;
  return *this;
}

Scan scan(const Context& context, const Checkpoint& checkpoint, const WeightMap& map) {
  const std::vector<Tensor>& tensors = checkpoint.tensors();
  const std::vector<ScannedTensor> scanned = models::scanned_tensors(checkpoint, map);
  std::vector<Chunk> chunks;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::uint64_t size = tensors[i].view.size_bytes;
    for (std::uint64_t at = 0; at < size; at += kChunk) {
      chunks.push_back({i, at, std::min(size, at + kChunk)});
    }
  }
  std::vector<ScanCounts> counts(chunks.size());
  std::vector<std::uint64_t> hashes(chunks.size());
  const int num_threads = context.num_threads();
  context.pool().parallel([&](int thread) {
    const Share share = share_of(static_cast<std::int64_t>(chunks.size()), 1, thread, num_threads);
    for (auto i = static_cast<std::size_t>(share.begin); i < static_cast<std::size_t>(share.end);
         ++i) {
      const Chunk& chunk = chunks[i];
      const auto* data = reinterpret_cast<const std::uint8_t*>(tensors[chunk.tensor].view.data);
      const std::uint64_t size = chunk.end - chunk.begin;
      counts[i] = counts_of(scanned[chunk.tensor], chunk);
      hashes[i] = hash_of(data + chunk.begin, size, chunk.begin);
    }
  });
  Scan out;
  out.counts.resize(tensors.size());
  std::vector<std::uint64_t> total(tensors.size(), 0);
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    out.counts[chunks[i].tensor] += counts[i];
    total[chunks[i].tensor] += hashes[i];
  }
  out.identical = find_identical(tensors, total);
  return out;
}

}  // namespace deepinfer
