// The corpus behind the golden digests: fixed weights and activations of every format, most of x
// raw bf16 with exponents spread over +-20, since sums of ordinary quantized values are often exact
// and would not show a wrong order.
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "deepinfer/linear.h"
#include "deepinfer/module.h"
#include "test_weights.h"

namespace deepinfer::test {

struct Corpus {
  std::string name;
  TestWeight weight;
  std::int64_t m;
  std::vector<float> x;     // [m, k]
  std::vector<float> bias;  // [n] or empty
  Activations activations;
};

inline float f32_of(std::uint32_t bits) {
  float value = 0;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

/// Rows of x: spread values; row 1 zeros; in quantized parts also tiny, huge, NaN and infinite
/// ones.
inline std::vector<float> corpus_x(Random& random, std::int64_t m, std::int64_t k, bool quantized) {
  std::vector<float> x(static_cast<std::size_t>(m * k));
  for (std::int64_t r = 0; r < m; ++r) {
    for (std::int64_t c = 0; c < k; ++c) {
      std::uint32_t bits = static_cast<std::uint32_t>(random.bf16(20)) << 16;
      if (quantized) bits |= static_cast<std::uint32_t>(random.next() & 0xFFFF);  // not bf16
      if (r == 1) bits = static_cast<std::uint32_t>(c % 2) << 31;                 // +0, -0
      if (r == 2) bits = (bits & 0x807FFFFFU) | (static_cast<std::uint32_t>(c % 60) << 23);
      if (quantized && r == 3 && c == k / 2) bits = 0x7FC00000U;
      if (quantized && r == 4 && c == k - 1) bits = 0xFF800000U;
      if (quantized && r == 5 && c == 0) bits = 0x7F7FFFFFU;
      x[static_cast<std::size_t>(r * k + c)] = f32_of(bits);
    }
  }
  return x;
}

inline std::vector<Corpus> make_corpus(const FormatCase& format) {
  struct Part {
    const char* name;
    std::int64_t m, n, k;
    bool special;  // all scale bytes and NaN codes
    Activations activations;
  };
  constexpr Part kParts[] = {
      {"raw", 16, 384, 576, false, Activations::kAsIs},
      {"ragged", 8, 100, 1074, true, Activations::kAsIs},
      {"quantized", 16, 224, 576, false, Activations::kQuantize224},
  };
  std::vector<Corpus> out;
  std::uint64_t seed = 2026;
  for (const Part& part : kParts) {
    Random random(++seed);
    Corpus c;
    c.name = std::string(format.name) + "-" + part.name;
    c.weight = random_weight(random, format, part.n, part.k, part.special);
    c.m = part.m;
    c.x = corpus_x(random, part.m, part.k, part.activations != Activations::kAsIs);
    c.activations = format.element == Element::kBf16 ? Activations::kAsIs : part.activations;
    if (format.element == Element::kBf16 && part.activations != Activations::kAsIs) {
      c.x = corpus_x(random, part.m, part.k, false);
    }
    if (part.special) {
      for (std::int64_t i = 0; i < part.n; ++i) {
        c.bias.push_back(f32_of(static_cast<std::uint32_t>(random.bf16(20)) << 16));
      }
    }
    out.push_back(std::move(c));
  }
  return out;
}

/// Activations that are quantized already, with scales of every kind.
struct CodedCorpus {
  std::string name;
  TestWeight weight;
  std::int64_t m;
  std::int64_t block_k;
  std::vector<std::uint8_t> codes;  // [m, k]
  std::vector<float> scales;        // [m, ceil(k / block_k)], or
  std::vector<std::uint8_t> bytes;  // the same as e8m0
};

/// A scale for row `r`: rows in turn have powers of two, anything finite around 1, any bits at all.
inline std::uint32_t corpus_scale(Random& random, std::int64_t r, bool e8m0) {
  const auto u = static_cast<std::uint32_t>(random.next());
  const std::uint32_t ordinary = 110 + (u >> 8) % 30;
  constexpr std::uint8_t kEdges[] = {0, 1, 35, 36, 37, 245, 246, 247, 254, 255};
  const bool edge = r % 3 == 2 && u % 4 == 0;
  if (e8m0) return edge ? kEdges[(u >> 8) % 10] : r % 3 == 1 ? (u >> 8) % 60 : ordinary;
  if (edge) return static_cast<std::uint32_t>(random.next() >> 32);
  return r % 3 == 1 ? (u & 0x807FFFFFU) | ordinary << 23 : ordinary << 23;
}

inline std::vector<CodedCorpus> make_coded_corpus(const FormatCase& format) {
  std::vector<CodedCorpus> out;
  if (format.element == Element::kBf16) return out;
  for (const bool e8m0 : {false, true}) {
    Random random(e8m0 ? 2101 : 2102);
    CodedCorpus c;
    c.name = std::string(format.name) + (e8m0 ? "-codes-e8m0" : "-codes-f32");
    constexpr std::int64_t kN = 100;
    constexpr std::int64_t kK = 1074;
    c.weight = random_weight(random, format, kN, kK);
    c.m = 12;
    c.block_k = e8m0 ? 32 : 128;
    c.codes = random.bytes(static_cast<std::size_t>(c.m * kK));
    for (std::uint8_t& code : c.codes) {
      if ((code & 0x7F) == 0x7F && random.below(256) != 0) code = 0x02;
    }
    for (std::int64_t r = 0; r < c.m; ++r) {
      for (std::int64_t k = 0; k < kK; k += c.block_k) {
        const std::uint32_t scale = corpus_scale(random, r, e8m0);
        if (e8m0) c.bytes.push_back(static_cast<std::uint8_t>(scale));
        if (!e8m0) c.scales.push_back(f32_of(scale));
      }
    }
    out.push_back(std::move(c));
  }
  return out;
}

inline std::vector<std::uint32_t> compute(const Context& context, const CodedCorpus& c) {
  const WeightView& w = c.weight.view;
  QuantizedView a;
  a.codes = c.codes.data();
  a.rows = a.scale_rows = c.m;
  a.columns = w.k;
  a.block_k = c.block_k;
  a.scale_columns = (w.k + c.block_k - 1) / c.block_k;
  a.scale_type = c.bytes.empty() ? ScaleType::kF32 : ScaleType::kE8m0;
  a.scales = c.bytes.empty() ? static_cast<const void*>(c.scales.data()) : c.bytes.data();
  std::vector<std::uint32_t> y(static_cast<std::size_t>(c.m * w.n), 0x7FABCDEFU);
  gemm_f32(context, a, PreparedWeight::single(c.weight.prepare()),
           {y.data(), FloatType::kF32, c.m, w.n, 0});
  return y;
}

/// y as f32 bits [m, n].
inline std::vector<std::uint32_t> compute(const Context& context, const Corpus& c) {
  const Weight w = c.weight.prepare();
  std::vector<std::uint32_t> y(static_cast<std::size_t>(c.m * w.n()), 0x7FABCDEFU);
  const MatrixView x = {c.x.data(), FloatType::kF32, c.m, w.k(), 0};
  const MutableMatrixView out = {y.data(), FloatType::kF32, c.m, w.n(), 0};
  linear(context, x, w, out, c.activations, c.bias.empty() ? nullptr : c.bias.data());
  return y;
}

}  // namespace deepinfer::test
