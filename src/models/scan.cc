// Counting in all threads. Tensors are cut into chunks of a fixed size, so that neither counts nor
// hashes depend on how many threads there are.
#include "deepinfer/scan.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <tuple>

#include "runtime/thread_pool.h"

namespace deepinfer {
namespace {

constexpr std::uint64_t kChunk = std::uint64_t{4} << 20;
constexpr std::uint64_t kSmallestAlias = 4096;  // vectors of ones are equal without a reason

/// What the bytes of a tensor are, as far as counting goes.
enum class Content : std::uint8_t { kOther, kE4m3, kE8m0, kF32, kBf16, kF16 };

struct Subject {
  Content content = Content::kOther;
  bool scales = false;
};

struct Chunk {
  std::size_t tensor;
  std::uint64_t begin;
  std::uint64_t end;
};

Content content_of(DType dtype) {
  switch (dtype) {
    case DType::kF8E4m3:
      return Content::kE4m3;
    case DType::kF8E8m0:
      return Content::kE8m0;
    case DType::kF32:
      return Content::kF32;
    case DType::kBf16:
      return Content::kBf16;
    case DType::kF16:
      return Content::kF16;
    default:
      return Content::kOther;
  }
}

std::vector<Subject> subjects_of(const Checkpoint& checkpoint, const WeightMap& map) {
  const std::vector<Tensor>& tensors = checkpoint.tensors();
  std::vector<Subject> out;
  for (const Tensor& tensor : tensors) out.push_back({content_of(tensor.view.dtype), false});
  for (const MappedWeight& weight : map.weights()) {
    if (weight.scales == nullptr) continue;
    Subject& subject = out[static_cast<std::size_t>(weight.scales - tensors.data())];
    subject.scales = true;
    if (weight.view.scale_type == ScaleType::kE8m0) subject.content = Content::kE8m0;
  }
  return out;
}

void count_e4m3(const std::uint8_t* bytes, std::uint64_t size, ScanCounts& counts) {
  constexpr unsigned kMagnitude = 0x7F;
  std::uint64_t nan = 0;
  for (std::uint64_t i = 0; i < size; ++i) nan += (bytes[i] & kMagnitude) == kMagnitude ? 1 : 0;
  counts.nan += nan;
}

void count_e8m0(const std::uint8_t* bytes, std::uint64_t size, ScanCounts& counts) {
  std::uint64_t lowest = 0;
  std::uint64_t highest = 0;
  for (std::uint64_t i = 0; i < size; ++i) {
    lowest += bytes[i] == 0x00 ? 1 : 0;
    highest += bytes[i] == 0xFF ? 1 : 0;
  }
  counts.e8m0_0 += lowest;
  counts.e8m0_255 += highest;
  counts.nan += highest;
}

/// IEEE-like values whose bits above the sign are compared with those of infinity.
template <class Bits>
void count_floats(const std::uint8_t* bytes, std::uint64_t size, Bits infinity, bool scales,
                  ScanCounts& counts) {
  constexpr Bits kMagnitude = static_cast<Bits>(static_cast<Bits>(~Bits{0}) >> 1);
  std::uint64_t nan = 0;
  std::uint64_t infinite = 0;
  std::uint64_t negative = 0;
  for (std::uint64_t i = 0; i + sizeof(Bits) <= size; i += sizeof(Bits)) {
    Bits value = 0;
    std::memcpy(&value, bytes + i, sizeof(value));
    const Bits magnitude = value & kMagnitude;
    nan += magnitude > infinity ? 1 : 0;
    infinite += magnitude == infinity ? 1 : 0;
    negative += value != magnitude && magnitude != 0 && magnitude <= infinity ? 1 : 0;
  }
  counts.nan += nan;
  counts.infinite += infinite;
  if (scales) counts.negative_scales += negative;
}

ScanCounts count(const std::uint8_t* bytes, std::uint64_t size, Subject subject) {
  constexpr std::uint32_t kInfinityF32 = 0x7F800000;
  constexpr std::uint16_t kInfinityBf16 = 0x7F80;
  constexpr std::uint16_t kInfinityF16 = 0x7C00;
  ScanCounts counts;
  switch (subject.content) {
    case Content::kOther:
      break;
    case Content::kE4m3:
      count_e4m3(bytes, size, counts);
      break;
    case Content::kE8m0:
      count_e8m0(bytes, size, counts);
      break;
    case Content::kF32:
      count_floats(bytes, size, kInfinityF32, subject.scales, counts);
      break;
    case Content::kBf16:
      count_floats(bytes, size, kInfinityBf16, subject.scales, counts);
      break;
    case Content::kF16:
      count_floats(bytes, size, kInfinityF16, subject.scales, counts);
      break;
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
  const std::vector<Subject> subjects = subjects_of(checkpoint, map);
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
      counts[i] = count(data + chunk.begin, size, subjects[chunk.tensor]);
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
