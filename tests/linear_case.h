// One call of linear() with everything that may vary about it, its solution by the scalar
// reference, and the same call in memory whose every buffer touches a page that faults.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "deepinfer/linear.h"
#include "formats/bf16.h"
#include "guarded_buffer.h"
#include "test_weights.h"

namespace deepinfer::test {

/// A call of linear().
struct LinearCase {
  FormatCase format;
  std::int64_t m, n, k;
  FloatType x_type;
  FloatType y_type;
  Activations activations;
  int threads;
  bool padded;  // rows of x, w and y lie further apart than they are long
  Placement placement;
  bool bias;
  bool special;  // NaN codes, all scale bytes; NaN, infinity, zeros and tiny values in x
};

inline std::string to_string(const LinearCase& c, Isa isa) {
  return fmt::format(
      "{} {} m={} n={} k={} x {} y {} activations {} threads {}{}{}{} {}", c.format.name,
      isa_name(isa), c.m, c.n, c.k, c.x_type == FloatType::kF32 ? "f32" : "bf16",
      c.y_type == FloatType::kF32 ? "f32" : "bf16", static_cast<int>(c.activations), c.threads,
      c.padded ? " padded" : "", c.bias ? " bias" : "", c.special ? " special" : "",
      c.placement == Placement::kEndsAtGuard ? "ends at guard" : "begins at guard");
}

// ---- a problem with its solution ----

inline std::int64_t element_bytes(FloatType type) { return type == FloatType::kF32 ? 4 : 2; }
inline std::int64_t y_stride(const LinearCase& c) { return c.n + (c.padded ? 5 : 0); }

/// Rows of x as f32 bits: exponents spread over +-20, for which a wrong order shows; as f32 they
/// are no bf16 values. `special` turns some rows into what a kernel may get wrong.
inline std::vector<std::uint32_t> make_x(Random& random, const LinearCase& c, std::int64_t rows) {
  std::vector<std::uint32_t> x;
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::uint64_t kind = c.special ? random.below(8) : 7;
    for (std::int64_t i = 0; i < c.k; ++i) {
      std::uint32_t bits = static_cast<std::uint32_t>(random.bf16(20)) << 16;
      const auto low = static_cast<std::uint32_t>(random.next() & 0xFFFF);
      if (kind == 0) bits &= 0x80000000U;                               // +0, -0
      if (kind == 1) bits = (bits & 0x807F0000U) | ((low % 60) << 23);  // around 2^-100
      if (kind == 2 && i == c.k / 2) bits = 0x7FC00000U;                // NaN
      if (kind == 3 && i == c.k - 1) bits = 0xFF800000U;                // -infinity
      if (kind == 4 && i == 0) bits = 0x7F7F0000U;                      // nearly infinity
      if (c.x_type == FloatType::kF32 && (bits & 0x7F800000U) != 0x7F800000U) bits |= low;
      x.push_back(bits);
    }
  }
  return x;
}

/// `special` gives one row of four, and one row of the scale grid of four, NaN codes and all scale
/// bytes: in every row they would make nearly all results NaN.
inline TestWeight make_weight(Random& random, const LinearCase& c) {
  TestWeight t = test::random_weight(random, c.format, c.n, c.k);
  if (!c.special) return t;
  const TestWeight other = test::random_weight(random, c.format, c.n, c.k, true);
  const auto mix = [](std::vector<std::uint8_t>& to, const std::vector<std::uint8_t>& from,
                      std::int64_t rows) {
    for (std::int64_t row = rows > 1 ? 1 : 0; row < rows; row += 4) {
      const auto bytes = static_cast<std::int64_t>(to.size()) / rows;
      std::copy_n(from.begin() + row * bytes, bytes, to.begin() + row * bytes);
    }
  };
  mix(t.codes, other.codes, c.n);
  if (t.view.scale_rows > 0) mix(t.scales, other.scales, t.view.scale_rows);
  return t;
}

/// What is multiplied, in ordinary dense memory, and the bits of the reference.
struct Problem {
  TestWeight weight;
  std::vector<std::uint8_t> x;  // [rows, k] of x_type
  std::vector<float> bias;      // [n] or empty
  std::vector<float> expected;  // [rows, n]
};

inline Problem solve(const LinearCase& c, std::int64_t rows) {
  Random random(static_cast<std::uint64_t>((c.n * 8191 + c.k) * 2 + (c.special ? 1 : 0)));
  Problem p;
  p.weight = make_weight(random, c);
  for (const std::uint32_t bits : make_x(random, c, rows)) {
    for (std::int64_t i = 4 - element_bytes(c.x_type); i < 4; ++i) {  // bf16: the upper half
      p.x.push_back(static_cast<std::uint8_t>(bits >> (8 * i)));
    }
  }
  for (std::int64_t i = 0; c.bias && i < c.n; ++i) {
    p.bias.push_back(formats::decode_bf16(random.bf16(20)));
  }
  p.expected.resize(static_cast<std::size_t>(rows * c.n));
  static const Context reference({.num_threads = 1, .isa = Isa::kRef});
  linear(reference, {p.x.data(), c.x_type, rows, c.k, 0}, p.weight.prepare(),
         {p.expected.data(), FloatType::kF32, rows, c.n, 0}, c.activations,
         c.bias ? p.bias.data() : nullptr);
  return p;
}

// ---- the same in guarded memory ----

/// `rows` rows of `row_bytes`, `stride` bytes apart, nothing behind the last; read-only, with NaN
/// in the gaps.
inline GuardedBuffer guarded_rows(const std::uint8_t* dense, std::int64_t rows,
                                  std::int64_t row_bytes, std::int64_t stride,
                                  Placement placement) {
  const std::int64_t size = rows == 0 ? 0 : (rows - 1) * stride + row_bytes;
  GuardedBuffer out(static_cast<std::size_t>(size), placement);
  for (std::int64_t r = 0; r < rows && row_bytes != 0; ++r) {
    std::memcpy(out.data() + r * stride, dense + r * row_bytes,
                static_cast<std::size_t>(row_bytes));
  }
  out.make_read_only();
  return out;
}

/// The first c.m rows of a problem.
class Inputs {
 public:
  Inputs(const Problem& p, const LinearCase& c)
      : x_stride_(c.k + (c.padded ? 3 : 0)),
        code_stride_(code_row_bytes(c.format.element, c.k) +
                     (c.padded ? 3 : 0)),  // bytes: odd addresses
        x_(guarded_rows(p.x.data(), c.m, c.k * element_bytes(c.x_type),
                        x_stride_ * element_bytes(c.x_type), c.placement)),
        codes_(guarded_rows(p.weight.codes.data(), c.n, code_row_bytes(c.format.element, c.k),
                            code_stride_, c.placement)),
        scales_(p.weight.scales.data(), p.weight.scales.size(), c.placement),
        bias_(p.bias.data(), p.bias.size() * sizeof(float), c.placement) {
    scales_.make_read_only();
    bias_.make_read_only();
    WeightView view = p.weight.view;
    view.codes = codes_.data();
    view.row_bytes = code_stride_;
    if (view.scales != nullptr) view.scales = scales_.data();
    w_ = Weight::prepare(view, c.format.name);
  }

  const Weight& w() const { return w_; }
  const float* bias() const {
    return bias_.size() == 0 ? nullptr : reinterpret_cast<const float*>(bias_.data());
  }
  MatrixView x(const LinearCase& c) const { return {x_.data(), c.x_type, c.m, c.k, x_stride_}; }

 private:
  std::int64_t x_stride_;
  std::int64_t code_stride_;
  GuardedBuffer x_;
  GuardedBuffer codes_;
  GuardedBuffer scales_;
  GuardedBuffer bias_;
  Weight w_;
};

/// y with the gaps between its rows: 0xFF where nothing is written, as in a new GuardedBuffer. That
/// is a NaN which no result is, those are 0x7FC0 or 0x7FC00000.
inline std::vector<std::uint8_t> expected_output(const Problem& p, const LinearCase& c) {
  const std::int64_t bytes = element_bytes(c.y_type);
  const std::int64_t stride = y_stride(c) * bytes;
  std::vector<std::uint8_t> y(
      static_cast<std::size_t>(c.m == 0 ? 0 : (c.m - 1) * stride + c.n * bytes), 0xFF);
  for (std::int64_t row = 0; row < c.m; ++row) {
    const float* values = p.expected.data() + row * c.n;
    std::uint8_t* at = y.data() + row * stride;
    for (std::int64_t i = 0; i < c.n; ++i, at += bytes) {
      const std::uint16_t bf16 = formats::store_bf16(values[i]);
      if (c.y_type == FloatType::kF32) {
        std::memcpy(at, values + i, sizeof(float));
      } else {
        std::memcpy(at, &bf16, sizeof(bf16));
      }
    }
  }
  return y;
}

inline const Context& context_of(Isa isa, int threads) {
  static std::map<std::pair<Isa, int>, std::unique_ptr<Context>> contexts;
  std::unique_ptr<Context>& context = contexts[{isa, threads}];
  if (!context) {
    context = std::make_unique<Context>(ContextOptions{.num_threads = threads, .isa = isa});
  }
  return *context;
}

/// Runs one case on one instruction set; false after a difference, which is reported.
inline bool gives_expected_bits(const std::vector<std::uint8_t>& expected, const Inputs& inputs,
                                const LinearCase& c, Isa isa) {
  const std::string name = to_string(c, isa);
  test::FaultReporter::running(name);
  const GuardedBuffer y(expected.size(), c.placement);
  linear(context_of(isa, c.threads), inputs.x(c), inputs.w(),
         {y.data(), c.y_type, c.m, c.n, y_stride(c)}, c.activations, inputs.bias());
  const auto difference = std::mismatch(expected.begin(), expected.end(), y.data());
  if (difference.first != expected.end()) {
    const std::int64_t at = (difference.first - expected.begin()) / element_bytes(c.y_type);
    const auto bits = [&](const std::uint8_t* data) {
      std::uint32_t value = 0;
      std::memcpy(&value, data + at * element_bytes(c.y_type), element_bytes(c.y_type));
      return value;
    };
    ADD_FAILURE() << fmt::format("{}: row {} column {}: {:08x}, expected {:08x}", name,
                                 at / y_stride(c), at % y_stride(c), bits(y.data()),
                                 bits(expected.data()));
    return false;
  }
  EXPECT_TRUE(y.slack_is_untouched()) << name;
  return !testing::Test::HasFailure();
}

}  // namespace deepinfer::test
