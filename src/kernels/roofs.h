// The roof loops, generic over a register type; included by every instruction-set file.
#pragma once

#include "formats/bits.h"
#include "kernels/kernel.h"

namespace deepinfer::kernels::roofs {

constexpr std::int64_t kLine = 64;
constexpr std::int64_t kPrefetchAhead = 2048;  // bytes; of 512 to 8192 the best where it was tried

/// One step reads a line of every stream. Sums 64-bit words, so that the loop becomes vector adds.
template <int kStreams, bool kPrefetch>
DEEPINFER_INLINE std::uint64_t read_streams(const char* data, std::int64_t bytes) {
  const std::int64_t part = bytes / kStreams;
  std::uint64_t sums[kStreams][8] = {};
  for (std::int64_t at = 0; at < part; at += kLine) {
    for (int s = 0; s < kStreams; ++s) {
      const char* line = data + s * part + at;
      if (kPrefetch) __builtin_prefetch(line + kPrefetchAhead);
      std::uint64_t words[8];
      __builtin_memcpy(words, line, sizeof(words));
      for (int i = 0; i < 8; ++i) sums[s][i] += words[i];
    }
  }
  std::uint64_t total = 0;
  for (int s = 0; s < kStreams; ++s) {
    for (int i = 0; i < 8; ++i) total += sums[s][i];
  }
  return total;
}

static std::uint64_t read(const void* data, std::int64_t bytes, int streams,
                          bool prefetch) noexcept {
  const char* p = static_cast<const char*>(data);
  switch (streams) {
    case 1:
      return prefetch ? read_streams<1, true>(p, bytes) : read_streams<1, false>(p, bytes);
    case 2:
      return prefetch ? read_streams<2, true>(p, bytes) : read_streams<2, false>(p, bytes);
    default:
      return prefetch ? read_streams<4, true>(p, bytes) : read_streams<4, false>(p, bytes);
  }
}

/// `Fma`: struct with Register, kFlops, zero(), step(acc), sum(acc).
template <class Fma, int kChains>
DEEPINFER_INLINE std::int64_t run_chains(std::int64_t rounds, float* sink) {
  typename Fma::Register acc[kChains];
  for (int c = 0; c < kChains; ++c) acc[c] = Fma::zero();
  for (std::int64_t i = 0; i < rounds; ++i) {
    for (int c = 0; c < kChains; ++c) acc[c] = Fma::step(acc[c]);
  }
  for (int c = 0; c < kChains; ++c) *sink += Fma::sum(acc[c]);
  return rounds * kChains * Fma::kFlops;
}

template <class Fma>
static std::int64_t multiply_add(std::int64_t rounds, int chains, float* sink) noexcept {
  switch (chains) {
    case 4:
      return run_chains<Fma, 4>(rounds, sink);
    case 8:
      return run_chains<Fma, 8>(rounds, sink);
    default:
      return run_chains<Fma, 12>(rounds, sink);
  }
}

}  // namespace deepinfer::kernels::roofs
