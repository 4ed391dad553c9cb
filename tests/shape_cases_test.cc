// Public fault reports about shapes, slices and batches, by number.
#include <gtest/gtest.h>

#include "case_data.h"
#include "test_weights.h"

namespace deepinfer {
namespace {

using test::Filled;
using test::filled;
using test::GuardedBytes;
using test::kOne;
using test::multiply;
using test::ones;
using test::Random;
using test::repeated;
using test::set_scale_byte;
using test::set_scales;

/// multiply() of rows [first, first + n) of the whole.
std::vector<float> rows(const WeightView& w, std::int64_t first, std::int64_t n) {
  return multiply(slice(w, first, n, 0, w.k), ones(w.k));
}

TEST(shape_cases_test, case_026_edge_blocks_have_scales_of_their_own) {
  Filled w = filled(576, 256, 128, 128);
  set_scales(w, ScaleType::kF32, std::vector<float>{1, 1, 2, 2, 4, 4, 8, 8, 16, 16});
  const auto y = multiply(w.view, ones(256));
  for (std::size_t i = 0; i < 576; ++i) {
    EXPECT_EQ(y[i], 256.0F * static_cast<float>(1 << (i / 128))) << i;
  }
  w.view.scale_rows = 4;
  EXPECT_NE(test::refusal([&] { Weight::prepare(w.view, "kv"); }).find("expected [5, 2]"),
            std::string::npos);
}

TEST(shape_cases_test, case_028_padding_scales_are_not_read) {
  for (const std::int64_t k : {544, 576, 608}) {
    const std::int64_t width = k / 32 + 2;
    std::vector<std::uint8_t> scales(static_cast<std::size_t>(4 * width), 255);
    for (std::int64_t r = 0; r < 4; ++r) std::fill_n(scales.begin() + r * width, k / 32, 127);
    Filled w = filled(4, k, 32, 32);
    set_scales(w, ScaleType::kE8m0, scales);
    w.view.scale_stride = width;
    EXPECT_EQ(multiply(w.view, ones(k)), repeated(static_cast<float>(k), 4));
    const PackedWeightView packed = {
        Element::kE4m3fn, w.codes.data(), {}, 4, k, {scales.data(), DType::kU8, 4, width}};
    const auto prepared = PreparedWeight::prepare(packed, "w");
    EXPECT_EQ(multiply(prepared.at({}).view(), ones(k)), repeated(static_cast<float>(k), 4));
  }
}

TEST(shape_cases_test, case_029_k_need_not_be_a_multiple_of_anything) {
  Filled w = filled(1, 40, 1, 32);
  set_scales(w, ScaleType::kE8m0, std::vector<std::uint8_t>{127, 128});
  EXPECT_EQ(multiply(w.view, ones(40)), repeated(48.0F, 1));
  for (const Element element : {Element::kE4m3fn, Element::kE2m1}) {
    for (const std::int64_t k : {1, 2, 31, 33, 34, 192, 1040}) {
      if (element == Element::kE2m1 && k % 2 != 0) continue;
      // Unreadable memory right behind codes, scales, x and y.
      Filled plain = filled(3, k, 1, 32, element == Element::kE2m1 ? 0x22 : kOne, element);
      set_scale_byte(plain, 127);
      const GuardedBytes codes(plain.codes);
      const GuardedBytes scales(plain.scales);
      plain.view.codes = codes.data();
      plain.view.scales = scales.data();
      for (const std::int64_t m : {1, 2, 17}) {
        std::vector<std::uint8_t> bf16_ones(static_cast<std::size_t>(2 * m * k), 0x80);
        for (std::size_t i = 1; i < bf16_ones.size(); i += 2) bf16_ones[i] = 0x3F;
        const GuardedBytes x(bf16_ones);
        for (const auto& context : test::all_contexts()) {
          const GuardedBytes y(
              std::vector<std::uint8_t>(static_cast<std::size_t>(m * 3 * 4), 0xFF));
          linear(*context, {x.data(), FloatType::kBf16, m, k, 0}, Weight::prepare(plain.view, "w"),
                 {y.data(), FloatType::kF32, m, 3, 0});
          const auto* values = reinterpret_cast<const float*>(y.data());
          for (std::int64_t i = 0; i < m * 3; ++i) EXPECT_EQ(values[i], static_cast<float>(k));
        }
      }
    }
  }
}

TEST(shape_cases_test, case_031_what_prepare_takes_runs_with_any_number_of_rows) {
  Filled w = filled(24, 128, 32, 32);
  set_scale_byte(w, 127);
  EXPECT_EQ(multiply(w.view, ones(128)), repeated(128.0F, 24));
  for (const auto& context : test::all_contexts()) {
    test::Output16 y(1, 24);
    const auto x = ones(128);
    linear_qdq_raw(*context, test::rows_of(x, 1, 128), w.view, y.view);
    EXPECT_EQ(y.bits, std::vector<std::uint16_t>(24, 0x4300));
  }
}

TEST(shape_cases_test, case_034_both_parts_of_a_fused_tensor_are_whole) {
  Filled w = filled(80, 32, 32, 32);
  std::fill(w.codes.begin() + 40 * 32, w.codes.end(), test::kTwo);
  set_scale_byte(w, 127);
  auto both = repeated(32.0F, 40);
  both.resize(80, 64.0F);
  EXPECT_EQ(multiply(w.view, ones(32)), both);
  EXPECT_EQ(rows(w.view, 0, 40), repeated(32.0F, 40));
  EXPECT_EQ(rows(w.view, 40, 40), repeated(64.0F, 40));
}

TEST(shape_cases_test, case_035_a_slice_may_be_smaller_than_a_block) {
  Filled w = filled(256, 128, 128, 128);
  set_scales(w, ScaleType::kF32, std::vector<float>{1, 2});
  for (std::int64_t rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(rows(w.view, rank * 64, 64), repeated(rank < 2 ? 128.0F : 256.0F, 64));
  }
  // Parts of 384, 64 and 64 rows have 3 + 1 + 1 rows of scales; as one weight of 512 they would
  // have 4, so the parts stay apart.
  Filled fused = filled(512, 128, 128, 128);
  set_scales(fused, ScaleType::kF32, std::vector<float>{1, 2, 4, 8, 16});
  fused.view.scale_rows = 5;
  EXPECT_NE(test::refusal([&] { Weight::prepare(fused.view, "qkv"); }).find("expected [4, 1]"),
            std::string::npos);
  std::int64_t first = 0;
  std::int64_t scale_row = 0;
  for (const std::int64_t n : {384, 64, 64}) {
    WeightView part = fused.view;
    part.codes = fused.codes.data() + first * 128;
    part.scales = fused.scales.data() + scale_row * 4;
    part.n = n;
    part.scale_rows = (n + 127) / 128;
    EXPECT_EQ(multiply(part, ones(128)).back(),
              128.0F * static_cast<float>(1 << (scale_row + part.scale_rows - 1)));
    first += n;
    scale_row += part.scale_rows;
  }
}

TEST(shape_cases_test, case_037_permuted_rows_need_a_scale_for_each_row) {
  const Filled w = filled(64, 32, 1, 32);
  std::vector<std::uint8_t> scales;  // rows 0, 32, 1, 33, ...: blocks of scale 1 and 2 in turn
  for (int i = 0; i < 64; ++i) scales.push_back(static_cast<std::uint8_t>(127 + i % 2));
  const PackedWeightView packed = {
      Element::kE4m3fn, w.codes.data(), {}, 64, 32, {scales.data(), DType::kU8, 64, 1}};
  EXPECT_FALSE(kernel_scale(packed));
  EXPECT_NE(test::refusal([&] {
              PreparedWeight::prepare(packed, "w");
            }).find("rows 0 and 1 have different scales, but share a block"),
            std::string::npos);
  Filled by_row = w;
  by_row.view.codes = by_row.codes.data();
  set_scales(by_row, ScaleType::kE8m0, scales);
  const auto y = multiply(by_row.view, ones(32));
  for (std::size_t i = 0; i < 64; ++i) EXPECT_EQ(y[i], i % 2 == 0 ? 32.0F : 64.0F);
}

TEST(shape_cases_test, case_038_k_is_cut_inside_blocks) {
  Filled w = filled(1, 3072, 128, 128);
  std::vector<float> scales;
  for (int j = 0; j < 24; ++j) scales.push_back(static_cast<float>(1 << (j % 4)));
  set_scales(w, ScaleType::kF32, scales);
  float sum = 0.0F;
  for (std::int64_t rank = 0; rank < 16; ++rank) {
    const float part = multiply(slice(w.view, 0, 1, rank * 192, 192), ones(192))[0];
    if (rank == 1) {
      EXPECT_EQ(part, 640.0F);
    }
    sum += part;
  }
  EXPECT_EQ(sum, 11520.0F);
  EXPECT_EQ(multiply(w.view, ones(3072))[0], 11520.0F);
}

TEST(shape_cases_test, case_039_a_rank_of_40_rows_begins_inside_a_block) {
  Filled w = filled(320, 128, 128, 128);
  set_scales(w, ScaleType::kF32, std::vector<float>{1, 2, 4});
  auto expected = repeated(128.0F, 8);
  expected.resize(40, 256.0F);
  EXPECT_EQ(rows(w.view, 120, 40), expected);
}

TEST(shape_cases_test, case_063_a_row_has_its_bits_in_every_batch) {
  constexpr std::int64_t kSide = 2048;
  constexpr test::FormatCase kFormat = {"fp8-32x32", Element::kE4m3fn, ScaleType::kE8m0, 32, 32};
  Random random(63);
  test::TestWeight t = test::random_weight(random, kFormat, kSide, kSide);
  for (std::uint8_t& byte : t.scales) byte = static_cast<std::uint8_t>(110 + random.below(26));
  const Weight w = t.prepare();
  const auto row = test::spread_bf16(random, kSide, 10);
  const Context context;
  std::vector<std::uint32_t> alone;
  int positions = 0;
  for (const std::int64_t m : {1, 2, 17, 33, 128, 257, 1024}) {
    auto x = test::spread_bf16(random, m * kSide, 10);
    std::vector<std::int64_t> places = {0, m / 2, m - 1};
    if (m == 1) places = {0};
    for (const std::int64_t at : places) std::copy(row.begin(), row.end(), x.begin() + at * kSide);
    test::Output32 y(m, kSide);
    linear(context, test::rows_of(x, m, kSide), w, y.view);
    if (m == 1) alone = y.bits;
    for (const std::int64_t at : places) {
      ++positions;
      EXPECT_TRUE(std::equal(alone.begin(), alone.end(), y.bits.begin() + at * kSide))
          << "m = " << m << " row " << at;
    }
  }
  EXPECT_EQ(positions, 19);
}

TEST(shape_cases_test, case_065_old_memory_is_never_added_to) {
  constexpr std::int64_t kK = 4096;
  Random random(65);
  for (const test::FormatCase& format : test::kFormatCases) {
    const test::TestWeight t = test::random_weight(random, format, 40, kK);
    const Weight w = t.prepare();
    const auto x = test::spread_bf16(random, kK, 10);
    for (const auto& context : test::all_contexts()) {
      std::vector<std::uint32_t> first;
      for (const float old : {std::numeric_limits<float>::quiet_NaN(), 1e30F, 0.0F}) {
        // The same call with such x leaves them in every buffer that calls share.
        std::vector<float> filling(static_cast<std::size_t>(kK), old);
        std::vector<float> y(40, old);
        linear(*context, test::rows_of(filling, 1, kK), w, {y.data(), FloatType::kF32, 1, 40, 0},
               Activations::kAsIs);
        std::fill(y.begin(), y.end(), old);
        linear(*context, test::rows_of(x, 1, kK), w, {y.data(), FloatType::kF32, 1, 40, 0});
        std::vector<std::uint32_t> bits;
        for (const float v : y) bits.push_back(formats::bits_of(v));
        if (first.empty()) first = bits;
        EXPECT_EQ(bits, first) << format.name << " " << isa_name(context->isa()) << " " << old;
      }
    }
  }
}

TEST(shape_cases_test, case_077_views_and_strides_are_honoured) {
  // w: the first 128 of 160 columns; x: every second row; y: columns 3.. of a wider matrix.
  Random random(77);
  constexpr test::FormatCase kFormat = {"fp8-32x32", Element::kE4m3fn, ScaleType::kE8m0, 32, 32};
  const test::TestWeight wide = test::random_weight(random, kFormat, 64, 160);
  const WeightView narrow = slice(wide.view, 0, 64, 0, 128);
  EXPECT_EQ(narrow.row_bytes, 160);
  std::vector<std::uint8_t> codes;
  std::vector<std::uint8_t> scales;
  for (std::size_t r = 0; r < 64; ++r) {
    const auto* row = wide.codes.data() + r * 160;
    codes.insert(codes.end(), row, row + 128);
  }
  for (std::size_t r = 0; r < 2; ++r) {
    const auto* row = wide.scales.data() + r * 5;
    scales.insert(scales.end(), row, row + 4);
  }
  WeightView dense = wide.view;
  dense.codes = codes.data();
  dense.scales = scales.data();
  dense.k = 128;
  dense.scale_columns = 4;
  const auto x = test::spread_bf16(random, 6 * 128, 6);
  std::vector<std::uint16_t> every_second;
  for (std::int64_t r = 0; r < 6; r += 2) {
    every_second.insert(every_second.end(), x.begin() + r * 128, x.begin() + (r + 1) * 128);
  }
  for (const auto& context : test::all_contexts()) {
    const auto expected = test::linear_bits(*context, test::rows_of(every_second, 3, 128), dense);
    std::vector<std::uint32_t> y(3 * 70, 7);
    linear(*context, {x.data(), FloatType::kBf16, 3, 128, 256}, Weight::prepare(narrow, "w"),
           {y.data() + 3, FloatType::kF32, 3, 64, 70}, Activations::kAsIs);
    for (std::size_t i = 0; i < y.size(); ++i) {
      const std::size_t r = i / 70;
      const std::size_t c = i % 70;
      EXPECT_EQ(y[i], c >= 3 && c < 67 ? expected[r * 64 + c - 3] : 7U) << i;
    }
  }
  WeightView transposed = dense;  // a grid lies row by row; another order is another shape
  std::swap(transposed.scale_rows, transposed.scale_columns);
  EXPECT_NE(test::refusal([&] { Weight::prepare(transposed, "w"); }).find("expected [2, 4]"),
            std::string::npos);
}

}  // namespace
}  // namespace deepinfer
