// The DeepGEMM-shaped calls against linear() on decoded activations: scale factors in every
// container, stride and recipe, accumulation, grouped forms.
#include "deepinfer/deep_gemm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "deepinfer/error.h"
#include "formats/bf16.h"
#include "formats/e4m3fn.h"
#include "random_data.h"

namespace deepinfer {
namespace {

using deep_gemm::GemmOptions;
using deep_gemm::Operand;
using deep_gemm::Recipe;
using test::Random;

constexpr std::int64_t kM = 6;
constexpr std::int64_t kN = 70;
constexpr std::int64_t kK = 290;

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

std::vector<std::uint8_t> random_codes(Random& random, std::int64_t count) {
  std::vector<std::uint8_t> codes = random.bytes(static_cast<std::size_t>(count));
  for (std::uint8_t& c : codes) {
    if ((c & 0x7F) == 0x7F) c ^= 0x0F;
  }
  return codes;
}

/// e8m0 bytes [rows, columns] and their containers.
struct Grid {
  std::int64_t rows;
  std::int64_t columns;
  std::vector<std::uint8_t> bytes;

  Grid(Random& random, std::int64_t r, std::int64_t c)
      : rows(r), columns(c), bytes(random.bytes(static_cast<std::size_t>(r * c))) {
    for (std::uint8_t& b : bytes) b = static_cast<std::uint8_t>(115 + b % 20);
  }
  std::uint8_t at(std::int64_t r, std::int64_t c) const {
    return bytes[static_cast<std::size_t>(r * columns + c)];
  }
  /// f32, element [r, c] at r * row_stride + c * column_stride; the gaps are NaN.
  std::vector<float> f32(std::int64_t row_stride, std::int64_t column_stride) const {
    std::vector<float> out(static_cast<std::size_t>(rows * row_stride + columns * column_stride),
                           std::numeric_limits<float>::quiet_NaN());
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t c = 0; c < columns; ++c) {
        out[static_cast<std::size_t>(r * row_stride + c * column_stride)] =
            std::ldexp(1.0F, at(r, c) - 127);
      }
    }
    return out;
  }
  /// MN-major int32, four bytes each, columns `stride` apart; unused bytes are 255.
  std::vector<std::uint32_t> packed(std::int64_t stride) const {
    std::vector<std::uint32_t> out(static_cast<std::size_t>(ceil_div(columns, 4) * stride),
                                   0xFFFFFFFFU);
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t c = 0; c < columns; ++c) {
        std::uint32_t& word = out[static_cast<std::size_t>(r + c / 4 * stride)];
        const auto shift = static_cast<unsigned>(8 * (c % 4));
        word = (word & ~(0xFFU << shift)) | (std::uint32_t{at(r, c)} << shift);
      }
    }
    return out;
  }
};

Operand operand(const std::vector<std::uint8_t>& codes, std::int64_t rows, const void* sf,
                DType dtype, std::int64_t row_stride, std::int64_t column_stride) {
  Operand o;
  o.data = codes.data();
  o.rows = rows;
  o.k = kK;
  o.sf = {sf, dtype, row_stride, column_stride, 0};
  return o;
}

/// bf16 values of quantized rows with power-of-two scales: exact.
std::vector<std::uint16_t> decoded(const std::vector<std::uint8_t>& codes, std::int64_t rows,
                                   const Grid& sf, std::int64_t gran_k) {
  std::vector<std::uint16_t> out;
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < kK; ++c) {
      const float value = formats::decode_e4m3fn(codes[static_cast<std::size_t>(r * kK + c)]);
      out.push_back(formats::encode_bf16(std::ldexp(value, sf.at(r, c / gran_k) - 127)));
    }
  }
  return out;
}

Weight weight(const std::vector<std::uint8_t>& codes, const Grid& sf, const Recipe& recipe,
              bool fp4 = false) {
  WeightView view;
  view.element = fp4 ? Element::kE2m1 : Element::kE4m3fn;
  view.codes = codes.data();
  view.n = kN;
  view.k = kK;
  view.scale_type = ScaleType::kE8m0;
  view.scales = sf.bytes.data();
  view.scale_rows = sf.rows;
  view.scale_columns = sf.columns;
  view.block_n = recipe.gran_mn;
  view.block_k = recipe.gran_k;
  return Weight::prepare(view, "b");
}

std::vector<float> expected_of(const Context& context, const std::vector<std::uint16_t>& x,
                               const Weight& w) {
  const std::int64_t m = static_cast<std::int64_t>(x.size()) / kK;
  std::vector<float> y(static_cast<std::size_t>(m * kN));
  linear(context, {x.data(), FloatType::kBf16, m, kK, 0}, w, {y.data(), FloatType::kF32, m, kN, 0},
         Activations::kAsIs);
  return y;
}

MutableMatrixView f32_view(std::vector<float>& d) {
  return {d.data(), FloatType::kF32, static_cast<std::int64_t>(d.size()) / kN, kN, 0};
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * 4) == 0;
}

constexpr Recipe kRecipes[] = {{1, 32}, {32, 32}, {1, 128}, {128, 128}};

TEST(deep_gemm_test, f32_scale_factors_of_every_recipe_and_stride) {
  const Context context;
  for (const Recipe& of_a : {Recipe{1, 32}, Recipe{1, 128}}) {
    for (const Recipe& of_b : kRecipes) {
      Random random(1);
      const auto a = random_codes(random, kM * kK);
      const auto b = random_codes(random, kN * kK);
      const Grid sfa(random, kM, ceil_div(kK, of_a.gran_k));
      const Grid sfb(random, ceil_div(kN, of_b.gran_mn), ceil_div(kK, of_b.gran_k));
      const auto expected =
          expected_of(context, decoded(a, kM, sfa, of_a.gran_k), weight(b, sfb, of_b));
      for (const bool mn_major : {false, true}) {
        const std::int64_t a_row = mn_major ? 1 : sfa.columns + 3;
        const std::int64_t a_column = mn_major ? kM + 2 : 1;
        const std::int64_t b_row = mn_major ? 1 : sfb.columns + 1;
        const std::int64_t b_column = mn_major ? sfb.rows + 5 : 1;
        const auto fa = sfa.f32(a_row, a_column);
        const auto fb = sfb.f32(b_row, b_column);
        std::vector<float> d(kM * kN, -1.0F);
        fp8_gemm_nt(context, operand(a, kM, fa.data(), DType::kF32, a_row, a_column),
                    operand(b, kN, fb.data(), DType::kF32, b_row, b_column), f32_view(d),
                    {.recipe_a = of_a, .recipe_b = of_b});
        EXPECT_TRUE(same_bits(d, expected)) << of_b.gran_mn << " " << of_b.gran_k << mn_major;
      }
    }
  }
}

TEST(deep_gemm_test, packed_scale_factors_and_fp4) {
  const Context context;
  for (const bool fp4 : {false, true}) {
    for (const std::int64_t gran_k : {32, 128}) {
      const Recipe recipe = {1, gran_k};
      Random random(2);
      const auto a = random_codes(random, kM * kK);
      const auto b = random_codes(random, kN * kK);  // fp4 uses half of it
      const Grid sfa(random, kM, ceil_div(kK, gran_k));
      const Grid sfb(random, kN, ceil_div(kK, gran_k));
      const auto pa = sfa.packed(8);
      const auto pb = sfb.packed(72);
      Operand ob = operand(b, kN, pb.data(), DType::kI32, 1, 72);
      if (fp4) ob.dtype = DType::kI8;
      std::vector<float> d(kM * kN, -1.0F);
      fp8_fp4_gemm_nt(context, operand(a, kM, pa.data(), DType::kI32, 1, 8), ob, f32_view(d),
                      {.recipe_a = recipe, .recipe_b = recipe});
      const auto expected =
          expected_of(context, decoded(a, kM, sfa, gran_k), weight(b, sfb, recipe, fp4));
      EXPECT_TRUE(same_bits(d, expected)) << fp4 << " " << gran_k;
    }
  }
}

TEST(deep_gemm_test, c_is_added_in_f32_and_may_be_d) {
  const Context context;
  Random random(3);
  const auto a = random_codes(random, kM * kK);
  const auto b = random_codes(random, kN * kK);
  const Grid sfa(random, kM, ceil_div(kK, 128));
  const Grid sfb(random, 1, ceil_div(kK, 128));
  const auto fa = sfa.f32(sfa.columns, 1);
  const auto fb = sfb.f32(sfb.columns, 1);
  const Operand oa = operand(a, kM, fa.data(), DType::kF32, sfa.columns, 1);
  const Operand ob = operand(b, kN, fb.data(), DType::kF32, sfb.columns, 1);
  std::vector<float> plain(kM * kN);
  fp8_gemm_nt(context, oa, ob, f32_view(plain));
  std::vector<float> c(kM * kN);
  for (std::size_t i = 0; i < c.size(); ++i) c[i] = 0.37F * static_cast<float>(i);
  const MatrixView view = {c.data(), FloatType::kF32, kM, kN, 0};
  std::vector<float> d(kM * kN, -1.0F);
  fp8_gemm_nt(context, oa, ob, f32_view(d), {.c = view});
  std::vector<float> expected;
  for (std::size_t i = 0; i < c.size(); ++i) expected.push_back(plain[i] + c[i]);
  EXPECT_TRUE(same_bits(d, expected));
  fp8_gemm_nt(context, oa, ob, f32_view(c), {.c = view});
  EXPECT_TRUE(same_bits(c, expected));
}

TEST(deep_gemm_test, no_k_gives_c_or_zeros) {
  const Context context;
  Operand a;
  a.rows = kM;
  Operand b;
  b.rows = kN;
  std::vector<float> d(kM * kN, -1.0F);
  fp8_gemm_nt(context, a, b, f32_view(d));
  for (const float v : d) EXPECT_EQ(v, 0.0F);
  std::vector<float> c(kM * kN, 2.5F);
  fp8_gemm_nt(context, a, b, f32_view(d), {.c = MatrixView{c.data(), FloatType::kF32, kM, kN, 0}});
  for (const float v : d) EXPECT_EQ(v, 2.5F);
}

TEST(deep_gemm_test, grouped_calls_are_the_plain_ones) {
  constexpr std::int64_t kGroups = 3;
  const Context context;
  Random random(4);
  const auto a = random_codes(random, kM * kK);
  const auto b = random_codes(random, kGroups * kN * kK);
  const Grid sfa(random, kM, ceil_div(kK, 32));
  const Grid sfb(random, kGroups * ceil_div(kN, 32), ceil_div(kK, 32));
  const auto fa = sfa.f32(sfa.columns, 1);
  const auto fb = sfb.f32(sfb.columns, 1);
  const GemmOptions options = {.recipe_a = Recipe{1, 32}, .recipe_b = Recipe{32, 32}};
  Operand oa = operand(a, kM, fa.data(), DType::kF32, sfa.columns, 1);
  Operand ob = operand(b, kN, fb.data(), DType::kF32, sfb.columns, 1);
  const auto plain = [&](std::int64_t row, std::int64_t group) {
    Operand pa = oa;
    pa.groups.reset();
    pa.data = a.data() + row * kK;
    pa.rows = 1;
    pa.sf.data = fa.data() + row * sfa.columns;
    Operand pb = ob;
    pb.groups.reset();
    pb.data = b.data() + group * kN * kK;
    pb.sf.data = fb.data() + group * ceil_div(kN, 32) * sfb.columns;
    std::vector<float> d(kN);
    fp8_gemm_nt(context, pa, pb, f32_view(d), options);
    return d;
  };
  ob.groups = kGroups;
  ob.sf.group_stride = ceil_div(kN, 32) * sfb.columns;
  const auto expect = [&](const std::vector<float>& d, const std::vector<std::int32_t>& groups) {
    for (std::size_t r = 0; r < groups.size(); ++r) {
      std::vector<float> row(d.begin() + static_cast<std::ptrdiff_t>(r) * kN,
                             d.begin() + static_cast<std::ptrdiff_t>(r + 1) * kN);
      std::vector<float> expected(kN, groups[r] == -1 ? 0.0F : -1.0F);
      if (groups[r] >= 0) expected = plain(static_cast<std::int64_t>(r), groups[r]);
      EXPECT_TRUE(same_bits(row, expected)) << r;
    }
  };
  const std::vector<std::int32_t> layout = {2, 2, -1, 0, 1, 1};
  std::vector<float> d(kM * kN, -1.0F);
  m_grouped_fp8_fp4_gemm_nt_contiguous(context, oa, ob, f32_view(d), layout, options);
  expect(d, layout);
  const std::vector<std::int32_t> ends = {2, 2, 5};
  m_grouped_fp8_fp4_gemm_nt_contiguous(context, oa, ob, f32_view(d), ends, options, true);
  expect(d, {0, 0, 2, 2, 2, -1});
  oa.groups = kGroups;
  oa.rows = kM / kGroups;
  oa.sf.group_stride = oa.rows * sfa.columns;
  const std::vector<std::int32_t> masked = {1, 0, 2};
  std::fill(d.begin(), d.end(), -1.0F);
  m_grouped_fp8_fp4_gemm_nt_masked(context, oa, ob, f32_view(d), masked, options);
  expect(d, {0, -2, -2, -2, 2, 2});
}

TEST(deep_gemm_test, everything_else_is_refused_by_name) {
  const Context context;
  Random random(5);
  const auto codes = random_codes(random, kN * kK);
  const Grid sf(random, kN, ceil_div(kK, 32));
  const auto f32 = sf.f32(sf.columns, 1);
  std::vector<float> d(kM * kN, -1.0F);
  const auto refused = [&](auto change, const char* word) {
    Operand a = operand(codes, kM, f32.data(), DType::kF32, sf.columns, 1);
    Operand b = operand(codes, kN, f32.data(), DType::kF32, sf.columns, 1);
    GemmOptions options = {.recipe_a = Recipe{1, 32}, .recipe_b = Recipe{1, 32}};
    change(a, b, options);
    try {
      fp8_gemm_nt(context, a, b, f32_view(d), options);
      ADD_FAILURE() << "accepted: " << word;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
    }
    for (const float v : d) ASSERT_EQ(v, -1.0F);
  };
  refused([](Operand& a, Operand&, GemmOptions&) { a.dtype = DType::kI8; }, "a is I8");
  refused([](Operand&, Operand& b, GemmOptions&) { b.dtype = DType::kI8; }, "b is I8");
  refused([](Operand&, Operand& b, GemmOptions&) { b.k = 31; }, "b has k = 31, expected 290");
  refused([](Operand& a, Operand&, GemmOptions&) { a.sf.dtype = DType::kF8E8m0; },
          "a's scale factors are F8_E8M0, expected F32 or I32");
  refused(
      [](Operand&, Operand&, GemmOptions& o) {
        o.recipe_b = Recipe{64, 64};
      },
      "b's scale factors have recipe (64, 64)");
  refused(
      [](Operand&, Operand&, GemmOptions& o) {
        o.recipe_a = Recipe{128, 128};
      },
      "a's scale factors have gran_mn 128");
  refused(
      [](Operand&, Operand& b, GemmOptions& o) {
        b.sf.dtype = DType::kI32;
        o.recipe_b = Recipe{32, 32};
      },
      "b's scale factors are I32 with gran_mn 32");
  refused([](Operand&, Operand& b, GemmOptions&) { b.sf.data = nullptr; },
          "b's scale factors are null");
  refused([](Operand&, Operand& b, GemmOptions&) { b.groups = 1; }, "b has groups");
  refused(
      [](Operand&, Operand&, GemmOptions& o) {
        o.c = MatrixView{nullptr, FloatType::kBf16, kM, kN, 0};
      },
      "c is of another type than d");
}

}  // namespace
}  // namespace deepinfer
