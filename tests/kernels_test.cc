// Every kernel of the registry against the reference kernels, bit for bit, through linear(): all
// formats, ragged shapes, all instruction sets of this CPU, several thread counts, both output
// types.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>

#include "deepinfer/linear.h"
#include "kernels/registry.h"
#include "test_weights.h"

namespace deepinfer {
namespace {

using test::FormatCase;
using test::Random;
using test::TestWeight;

std::vector<Isa> usable_isas() {
  std::vector<Isa> out;
  for (const kernels::IsaTable* table : kernels::isa_tables()) {
    if (!kernels::why_not(table->isa)) out.push_back(table->isa);
  }
  return out;
}

/// x with exponents spread over +-20 as f32: the values for which a wrong order shows.
std::vector<float> spread_x(Random& random, std::int64_t m, std::int64_t k) {
  std::vector<float> x(static_cast<std::size_t>(m * k));
  for (float& v : x) {
    const std::uint32_t bits = static_cast<std::uint32_t>(random.bf16(20)) << 16;
    std::memcpy(&v, &bits, sizeof(v));
  }
  return x;
}

/// y as bits, outputs prefilled with NaN.
std::vector<std::uint32_t> run(const Context& context, const std::vector<float>& x, std::int64_t m,
                               const Weight& w, Activations activations) {
  std::vector<std::uint32_t> y(static_cast<std::size_t>(m * w.n()), 0x7FABCDEFU);
  const MatrixView in = {x.data(), FloatType::kF32, m, w.k(), 0};
  const MutableMatrixView out = {y.data(), FloatType::kF32, m, w.n(), 0};
  linear(context, in, w, out, activations);
  return y;
}

struct Shape {
  std::int64_t m, n, k;
};

constexpr Shape kShapes[] = {{1, 1, 32},    {1, 33, 576},  {2, 31, 40},   {3, 17, 512},
                             {4, 24, 544},  {5, 130, 96},  {7, 40, 1040}, {17, 9, 1536},
                             {33, 20, 608}, {65, 50, 192}, {1, 576, 258}, {8, 3, 2},
                             {9, 129, 514}, {1, 96, 2880}, {130, 5, 64}};

class kernels_test : public testing::TestWithParam<FormatCase> {};

TEST_P(kernels_test, every_isa_gives_the_reference_bits) {
  const Context reference({.num_threads = 1, .isa = Isa::kRef});
  for (const bool special : {false, true}) {
    Random random(special ? 11 : 10);
    for (const Shape& s : kShapes) {
      const TestWeight t = test::random_weight(random, GetParam(), s.n, s.k, special);
      const Weight w = t.prepare();
      const std::vector<float> x = spread_x(random, s.m, s.k);
      for (const Activations mode : {Activations::kAsIs, Activations::kQuantize224}) {
        const auto expected = run(reference, x, s.m, w, mode);
        for (const Isa isa : usable_isas()) {
          for (const int threads : {1, 2, 3}) {
            const Context context({.num_threads = threads, .isa = isa});
            const auto got = run(context, x, s.m, w, mode);
            for (std::size_t i = 0; i < got.size(); ++i) {
              ASSERT_EQ(got[i], expected[i]) << fmt::format(
                  "{} {} threads m={} n={} k={} row {} column {}: {:08x} {:08x}", isa_name(isa),
                  threads, s.m, s.n, s.k, i / static_cast<std::size_t>(s.n),
                  i % static_cast<std::size_t>(s.n), got[i], expected[i]);
            }
          }
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(formats, kernels_test, testing::ValuesIn(test::kFormatCases),
                         [](const auto& format_case) {
                           std::string name = format_case.param.name;
                           for (char& c : name) c = c == '-' ? '_' : c;
                           return name;
                         });

/// One pair of bf16 products next to the smallest normal number. The odd product, 2^-126, comes
/// first; then the even one is taken away. Rounded to 24 bits with unbounded exponent, 2^-126 -
/// 2^-150 is below 2^-126 and becomes zero, though rounding to a subnormal's bits would lift it to
/// 2^-126; 2^-126 - 2^-152 rounds up to 2^-126 and stays.
TEST(bf16_flush_test, results_are_flushed_after_rounding_on_every_isa) {
  const auto bf16_power = [](int exponent) {
    return static_cast<std::uint16_t>((127 + exponent) << 7);
  };
  struct Case {
    int even_exponent;
    float expected;
  };
  for (const Case& c : {Case{-149, 0.0F}, Case{-150, 0.0F}, Case{-152, 0x1p-126F}}) {
    std::vector<std::uint16_t> codes(32, 0);
    codes[1] = bf16_power(-60);
    codes[0] = static_cast<std::uint16_t>(bf16_power(c.even_exponent + 76) | 0x8000);
    std::vector<std::uint16_t> x(32, 0);
    x[1] = bf16_power(-66);
    x[0] = bf16_power(-76);
    WeightView view;
    view.codes = codes.data();
    view.n = 1;
    view.k = 32;
    const Weight w = Weight::prepare(view, "w");
    for (const Isa isa : usable_isas()) {
      const Context context({.num_threads = 1, .isa = isa});
      float y = -1.0F;
      linear(context, {x.data(), FloatType::kBf16, 1, 32, 0}, w, {&y, FloatType::kF32, 1, 1, 0});
      EXPECT_EQ(y, c.expected) << isa_name(isa) << " 2^" << c.even_exponent;
    }
  }
}

TEST(registry_test, names_follow_the_grammar_and_are_unique) {
  std::vector<std::string> seen;
  for (const kernels::IsaTable* table : kernels::isa_tables()) {
    for (int i = 0; i < table->num_kernels; ++i) {
      const kernels::Kernel& kernel = table->kernels[i];
      const std::string name = kernel.name;
      const std::string tail = fmt::format("_bf16_{}x{}_{}", kernel.mr, kernel.nr, table->name);
      EXPECT_TRUE(name.starts_with("gemm_") || name.starts_with("gemv_")) << name;
      EXPECT_TRUE(name.ends_with(tail)) << name << " " << tail;
      EXPECT_EQ(kernel.isa, table->isa) << name;
      EXPECT_EQ(std::count(seen.begin(), seen.end(), name), 0) << name;
      seen.push_back(name);
    }
  }
}

TEST(registry_test, this_cpu_runs_what_its_features_promise) {
  for (const kernels::IsaTable* table : kernels::isa_tables()) {
    const auto reason = kernels::why_not(table->isa);
    if (reason) {
      GTEST_LOG_(WARNING) << "NOT TESTED HERE: " << table->name << ": " << *reason;
    }
  }
}

}  // namespace
}  // namespace deepinfer
