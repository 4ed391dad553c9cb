// Tensors for the C interface, with the memory they describe.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "deepinfer/deepinfer.h"
#include "deepinfer/linear.h"
#include "deepinfer/prepared_weight.h"
#include "deepinfer/runtime.h"
#include "random_data.h"

namespace deepinfer::test {

inline deepinfer_tensor tensor(const void* data, deepinfer_dtype dtype,
                               const std::vector<std::int64_t>& shape,
                               const std::vector<std::int64_t>& stride = {}) {
  deepinfer_tensor t = {};
  t.struct_size = sizeof(t);
  t.data = const_cast<void*>(data);
  t.dtype = dtype;
  t.rank = static_cast<std::int32_t>(shape.size());
  std::copy(shape.begin(), shape.end(), t.shape);
  std::copy(stride.begin(), stride.end(), t.stride);
  return t;
}

/// What a call must not touch where it fails: recognisable before and after.
template <class T>
std::vector<T> prefilled(std::int64_t count) {
  std::vector<T> out(static_cast<std::size_t>(count));
  std::memset(out.data(), 0xA5, out.size() * sizeof(T));
  return out;
}

#define EXPECT_OK(call) EXPECT_EQ(call, DEEPINFER_OK) << deepinfer_last_error()
#define ASSERT_OK(call) ASSERT_EQ(call, DEEPINFER_OK) << deepinfer_last_error()

/// A C context, and a C++ one with the same switches.
struct Contexts {
  explicit Contexts(int gemm = 1, int split2 = 1, int threads = 2)
      : cpp({.num_threads = threads, .gemm = gemm == 1, .split2 = split2 == 1}) {
    deepinfer_context_options options = DEEPINFER_CONTEXT_OPTIONS_INIT;
    options.num_threads = threads;
    options.gemm = gemm;
    options.split2 = split2;
    EXPECT_OK(deepinfer_context_create(&options, &c));
  }
  Contexts(const Contexts&) = delete;
  Contexts& operator=(const Contexts&) = delete;
  ~Contexts() { deepinfer_context_destroy(c); }

  Context cpp;
  deepinfer_context* c = nullptr;
};

/// Codes and packed scales, e groups (0: not stacked), rows of a 32-row block sharing a scale.
struct Packed {
  Packed(Random& random, bool is_fp4, std::int64_t groups, std::int64_t rows, std::int64_t columns)
      : fp4(is_fp4), e(groups), n(rows), k(columns), c((columns + 31) / 32 + 1) {
    const std::int64_t all = std::max<std::int64_t>(e, 1);
    codes = random.bytes(static_cast<std::size_t>(all * n * code_columns()));
    if (!fp4) {
      for (std::uint8_t& code : codes) {
        if ((code & 0x7F) == 0x7F) code = 0x38;  // no NaN
      }
    }
    scales.resize(static_cast<std::size_t>(all * n * c));
    for (std::int64_t row = 0; row < all * n; ++row) {
      const std::int64_t of_group = row % n;
      for (std::int64_t i = 0; i < c; ++i) {
        auto* at = scales.data() + row * c + i;
        const bool first = fp4 || of_group % 32 == 0;
        *at = first ? static_cast<std::uint8_t>(120 + random.below(12)) : *(at - c);
      }
    }
  }

  std::int64_t code_columns() const { return fp4 ? k / 2 : k; }
  deepinfer_dtype dtype() const { return fp4 ? DEEPINFER_F4_E2M1X2 : DEEPINFER_F8_E4M3FN; }

  deepinfer_tensor codes_tensor() const {
    if (e == 0) return tensor(codes.data(), dtype(), {n, code_columns()});
    return tensor(codes.data(), dtype(), {e, n, code_columns()});
  }
  deepinfer_tensor scales_tensor() const {
    if (e == 0) return tensor(scales.data(), DEEPINFER_U8, {n, c});
    return tensor(scales.data(), DEEPINFER_U8, {e, n, c});
  }
  PackedWeightView view() const {
    PackedWeightView v;
    v.element = fp4 ? Element::kE2m1 : Element::kE4m3fn;
    v.codes = codes.data();
    if (e != 0) v.groups = e;
    v.n = n;
    v.k = k;
    v.scales = {scales.data(), DType::kU8, n, c};
    return v;
  }

  bool fp4;
  std::int64_t e;
  std::int64_t n;
  std::int64_t k;
  std::int64_t c;  ///< columns of scales: one more than needed
  std::vector<std::uint8_t> codes;
  std::vector<std::uint8_t> scales;
};

/// The C handle of a weight.
struct Handle {
  explicit Handle(const Packed& packed) {
    const deepinfer_tensor codes = packed.codes_tensor();
    const deepinfer_tensor scales = packed.scales_tensor();
    EXPECT_OK(deepinfer_weight_prepare(&codes, &scales, "w", &w));
  }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle() { deepinfer_weight_destroy(w); }

  deepinfer_weight* w = nullptr;
};

inline std::vector<std::uint16_t> random_x(Random& random, std::int64_t count) {
  std::vector<std::uint16_t> x(static_cast<std::size_t>(count));
  for (std::uint16_t& value : x) value = random.bf16(6);
  return x;
}

inline MatrixView bf16_rows(const std::vector<std::uint16_t>& x, std::int64_t k) {
  return {x.data(), FloatType::kBf16, static_cast<std::int64_t>(x.size()) / k, k, 0};
}

/// Both formats, single and stacked, ragged and of whole halves.
inline std::vector<Packed> weights() {
  Random random(11);
  std::vector<Packed> out;
  for (const bool fp4 : {false, true}) {
    for (const std::int64_t e : {0, 3}) {
      out.emplace_back(random, fp4, e, 67, 130);
      out.emplace_back(random, fp4, e, 256, 96);
    }
  }
  return out;
}

/// Runs the test for every weight, with each of its groups.
template <class Test>
void for_each_weight(const Test& test) {
  for (const Packed& packed : weights()) {
    SCOPED_TRACE(::testing::Message() << (packed.fp4 ? "fp4 " : "fp8 ") << packed.e << " x "
                                      << packed.n << " x " << packed.k);
    const Handle handle(packed);
    const PreparedWeight cpp = PreparedWeight::prepare(packed.view(), "w");
    const std::int64_t last = packed.e == 0 ? DEEPINFER_NO_GROUP : packed.e - 1;
    const auto group = packed.e == 0 ? std::nullopt : std::optional(packed.e - 1);
    test(packed, handle.w, cpp, last, group);
  }
}

}  // namespace deepinfer::test
