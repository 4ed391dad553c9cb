// Small weights and calls for tests of public fault reports.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "kernels/registry.h"
#include "module_data.h"

namespace deepinfer::test {

constexpr std::uint8_t kOne = 0x38;  // 1.0 in e4m3fn
constexpr std::uint8_t kTwo = 0x40;

/// A weight [n, k] with one code and given scales, in blocks of block_n x block_k.
struct Filled {
  std::vector<std::uint8_t> codes;
  std::vector<std::uint8_t> scales;
  WeightView view;
};

inline Filled filled(std::int64_t n, std::int64_t k, std::int64_t block_n, std::int64_t block_k,
                     std::uint8_t code = kOne, Element element = Element::kE4m3fn) {
  Filled w;
  w.codes.assign(static_cast<std::size_t>(n * code_row_bytes(element, k)), code);
  w.view.element = element;
  w.view.codes = w.codes.data();
  w.view.n = n;
  w.view.k = k;
  w.view.block_n = block_n;
  w.view.block_k = block_k;
  w.view.scale_rows = (n + block_n - 1) / block_n;
  w.view.scale_columns = (k + block_k - 1) / block_k;
  return w;
}

/// Scales of any type from their stored form.
template <class T>
void set_scales(Filled& w, ScaleType type, const std::vector<T>& scales) {
  w.scales.resize(scales.size() * sizeof(T));
  std::memcpy(w.scales.data(), scales.data(), w.scales.size());
  w.view.scale_type = type;
  w.view.scales = w.scales.data();
}

/// All scale bytes the same.
inline void set_scale_byte(Filled& w, std::uint8_t byte) {
  set_scales(w, ScaleType::kE8m0,
             std::vector<std::uint8_t>(
                 static_cast<std::size_t>(w.view.scale_rows * w.view.scale_columns), byte));
}

/// Contexts of every usable instruction set with 1 and 3 threads.
inline const std::vector<std::unique_ptr<Context>>& all_contexts() {
  static const std::vector<std::unique_ptr<Context>> contexts = [] {
    std::vector<std::unique_ptr<Context>> out;
    for (const kernels::IsaTable* table : kernels::isa_tables()) {
      if (kernels::why_not(table->isa)) continue;
      for (const int threads : {1, 3}) {
        out.push_back(
            std::make_unique<Context>(ContextOptions{.num_threads = threads, .isa = table->isa}));
      }
    }
    return out;
  }();
  return contexts;
}

inline bool same_bits(float a, float b) { return formats::bits_of(a) == formats::bits_of(b); }

/// y [n] of one row of x, checked to have the same bits in every row of batches of several sizes,
/// on every instruction set, with several threads, over an output of NaNs.
inline std::vector<float> multiply(const WeightView& view, const std::vector<float>& x,
                                   Activations activations = Activations::kQuantize224) {
  const Weight w = Weight::prepare(view, "w");
  const auto n = static_cast<std::size_t>(view.n);
  std::vector<float> first;
  for (const auto& context : all_contexts()) {
    for (const std::size_t m : {1, 2, 3, 17, 33}) {
      std::vector<float> rows;
      for (std::size_t i = 0; i < m; ++i) rows.insert(rows.end(), x.begin(), x.end());
      std::vector<float> y(m * n, std::numeric_limits<float>::quiet_NaN());
      const auto count = static_cast<std::int64_t>(m);
      linear(*context, rows_of(rows, count, view.k), w,
             {y.data(), FloatType::kF32, count, view.n, 0}, activations);
      if (first.empty()) first.assign(y.begin(), y.begin() + view.n);
      for (std::size_t i = 0; i < y.size(); ++i) {
        EXPECT_TRUE(same_bits(y[i], first[i % n]))
            << isa_name(context->isa()) << " m = " << m << " row " << i / n << " column " << i % n;
      }
    }
  }
  return first;
}

inline std::vector<float> ones(std::int64_t k) {
  return std::vector<float>(static_cast<std::size_t>(k), 1.0F);
}

inline std::vector<float> one_hot(std::int64_t k, std::int64_t at, float value) {
  std::vector<float> x(static_cast<std::size_t>(k), 0.0F);
  x[static_cast<std::size_t>(at)] = value;
  return x;
}

inline std::vector<float> repeated(float value, std::int64_t count) {
  return std::vector<float>(static_cast<std::size_t>(count), value);
}

}  // namespace deepinfer::test
