// Activations that a caller has quantized, with scales of every kind: inside x where that is exact,
// else times the weight's scale, as docs/determinism.md says. Compared with plain loops.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "activations/activations.h"
#include "contract_dot.h"
#include "deepinfer/module.h"
#include "kernels/registry.h"
#include "module_data.h"
#include "ops/gemm.h"
#include "test_weights.h"

namespace deepinfer {
namespace {

using test::Random;
using test::TestWeight;

constexpr std::int64_t kN = 34;
constexpr std::int64_t kK = 610;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// Finite ones first: rows of those alone keep a wrong order from hiding behind a NaN.
constexpr float kFiniteScales[] = {1.5F,      0.3F,      0.0F,     -0.0F,      -1.0F,    -0.125F,
                                   1e-40F,    0x1p-127F, 0x1p-92F, 0x1p-91F,   0x1p-90F, 0x1p118F,
                                   0x1p-126F, 3.7F,      0x1p-20F, 0.0078125F, 1.0F,     0x1p20F};
constexpr float kAnyScales[] = {kNan,     -kNan,   kInfinity, -kInfinity, 0x1p119F,
                                0x1p120F, 3.4e38F, 0x1p127F,  -3.4e38F};
constexpr std::uint8_t kFiniteBytes[] = {0, 1, 34, 35, 36, 37, 120, 127, 130, 140};
constexpr std::uint8_t kAnyBytes[] = {255, 245, 246, 247, 254};

/// Activations of m rows whose scales are of every kind, as f32 or e8m0, for 32 or 128 columns.
struct Foreign {
  std::int64_t m;
  std::vector<std::uint8_t> codes;
  std::vector<float> scales;         // [m, columns]
  std::vector<std::uint8_t> memory;  // the stored scales, one byte off their alignment
  QuantizedView view;

  float scale(std::int64_t row, std::int64_t k) const {
    return scales[static_cast<std::size_t>(row * view.scale_columns + k / view.block_k)];
  }
  float code(std::int64_t row, std::int64_t k) const {
    return formats::decode_e4m3fn(codes[static_cast<std::size_t>(row * kK + k)]);
  }
};

Foreign foreign(Random& random, std::int64_t m, ScaleType type, std::int64_t block_k,
                bool transposed) {
  Foreign f;
  f.m = m;
  f.codes = random.bytes(static_cast<std::size_t>(m * kK));
  for (std::uint8_t& c : f.codes) {
    if ((c & 0x7F) == 0x7F && random.below(64) != 0) c = 0x08;  // NaN seldom
  }
  const std::int64_t columns = (kK + block_k - 1) / block_k;
  const std::int64_t bytes = type == ScaleType::kF32 ? 4 : 1;
  f.memory.resize(static_cast<std::size_t>(1 + m * columns * bytes));
  for (std::int64_t r = 0; r < m; ++r) {
    for (std::int64_t c = 0; c < columns; ++c) {
      // Row kinds in turn: inside x, one of a kind, finite ones, all kinds.
      const bool inside = r % 4 == 0 || (r % 4 == 1 && c != columns / 2);
      const bool any = r % 4 == 3 && random.below(16) == 0;
      const std::uint64_t pick = random.next();
      float scale = std::ldexp(1.0F, static_cast<int>(pick % 40) - 20);
      std::uint8_t byte = static_cast<std::uint8_t>(110 + pick % 30);
      if (!inside) {
        scale = any ? kAnyScales[pick % std::size(kAnyScales)]
                    : kFiniteScales[pick % std::size(kFiniteScales)];
        byte = any ? kAnyBytes[pick % std::size(kAnyBytes)]
                   : kFiniteBytes[pick % std::size(kFiniteBytes)];
      }
      const std::int64_t at = 1 + (transposed ? c * m + r : r * columns + c) * bytes;
      if (type == ScaleType::kE8m0) {
        scale = formats::decode_e8m0(byte);
        f.memory[static_cast<std::size_t>(at)] = byte;
      } else {
        std::memcpy(&f.memory[static_cast<std::size_t>(at)], &scale, 4);
      }
      f.scales.push_back(scale);
    }
  }
  f.view.codes = f.codes.data();
  f.view.rows = m;
  f.view.columns = kK;
  f.view.scale_type = type;
  f.view.scales = f.memory.data() + 1;
  f.view.scale_rows = m;
  f.view.scale_columns = columns;
  f.view.scale_stride = transposed ? 1 : columns;
  f.view.scale_column_stride = transposed ? m : 1;
  f.view.block_k = block_k;
  return f;
}

bool inside_x(float scale) {
  int exponent = 0;
  return std::frexp(scale, &exponent) == 0.5F && exponent - 1 >= -91 && exponent - 1 <= 119;
}

float scale_of(const TestWeight& w, const Weight& prepared, std::int64_t row, std::int64_t block) {
  const WeightView& v = w.view;
  const auto at =
      static_cast<std::size_t>(row / v.block_n * v.scale_columns + block * 32 / v.block_k);
  return v.scale_type == ScaleType::kE8m0 ? formats::decode_e8m0(w.scales[at])
                                          : prepared.f32_scales()[at];
}

std::vector<float> code_row(const TestWeight& w, std::int64_t row) {
  std::vector<float> out(static_cast<std::size_t>(kK));
  const auto bytes = static_cast<std::size_t>(code_row_bytes(w.format.element, kK));
  decode_data(w.format.element, w.codes.data() + static_cast<std::size_t>(row) * bytes, kK,
              out.data());
  return out;
}

std::vector<std::uint32_t> expected_bits(const Foreign& f, const TestWeight& w) {
  const Weight prepared = w.prepare();
  std::vector<std::vector<float>> w_codes;
  std::vector<std::vector<float>> w_scales(static_cast<std::size_t>(kN));
  for (std::int64_t n = 0; n < kN; ++n) {
    w_codes.push_back(code_row(w, n));
    for (std::int64_t b = 0; b < (kK + 31) / 32; ++b) {
      w_scales[static_cast<std::size_t>(n)].push_back(scale_of(w, prepared, n, b));
    }
  }
  std::vector<std::uint32_t> y;
  for (std::int64_t r = 0; r < f.m; ++r) {
    std::vector<float> x;
    std::vector<float> x_scales;
    for (std::int64_t i = 0; i < kK; ++i) {
      const float scale = f.scale(r, i);
      x.push_back(inside_x(scale) ? f.code(r, i) * scale : f.code(r, i));
      if (i % 32 == 0) x_scales.push_back(inside_x(scale) ? 1.0F : scale);
    }
    for (std::size_t n = 0; n < w_codes.size(); ++n) {
      const float value =
          test::contract_dot(w.format.element, w_codes[n], w_scales[n], x, x_scales);
      y.push_back(formats::bits_of(formats::store_f32(value)));
    }
  }
  return y;
}

class activation_scales_test : public testing::TestWithParam<test::FormatCase> {};

TEST_P(activation_scales_test, each_scale_is_inside_x_or_times_the_weights) {
  Random random(41);
  const TestWeight w = test::random_weight(random, GetParam(), kN, kK);
  const Weight prepared = w.prepare();
  for (const ScaleType type : {ScaleType::kF32, ScaleType::kE8m0}) {
    for (const std::int64_t block_k : {32, 128}) {  // 128: scales transposed too
      const Foreign f = foreign(random, 70, type, block_k, block_k == 128);
      const auto expected = expected_bits(f, w);
      for (const kernels::IsaTable* table : kernels::isa_tables()) {
        if (kernels::why_not(table->isa)) continue;
        const Context context({.num_threads = 2, .isa = table->isa});
        for (const std::int64_t m : {1, 5, 70}) {
          if (m == 70 && table->isa == Isa::kRef) continue;             // slow
          for (const std::int64_t first : {std::int64_t{0}, 70 - m}) {  // the first, the last rows
            QuantizedView part = f.view;
            part.rows = part.scale_rows = m;
            const std::int64_t element = type == ScaleType::kF32 ? 4 : 1;
            part.codes = f.codes.data() + first * kK;
            part.scales = f.memory.data() + 1 + first * f.view.scale_stride * element;
            test::Output32 y(m, kN);
            const ops::GemmTask task = {.w = &prepared, .y = y.view};
            ops::gemm(context, ops::thread_workspace(), {.codes = &part}, std::span(&task, 1));
            for (std::int64_t i = 0; i < m * kN; ++i) {
              ASSERT_EQ(y.bits[static_cast<std::size_t>(i)],
                        expected[static_cast<std::size_t>(first * kN + i)])
                  << table->name << " m = " << m << " row " << first + i / kN << " column "
                  << i % kN << " block_k " << block_k;
            }
            if (GetParam().element != Element::kE4m3fn) continue;
            test::Output32 d(m, kN);
            gemm_f32(context, part, PreparedWeight::single(w.prepare()), d.view);
            ASSERT_EQ(d.bits, y.bits);
          }
        }
      }
    }
  }
}

std::vector<test::FormatCase> code_formats() {
  std::vector<test::FormatCase> out;
  for (const test::FormatCase& format : test::kFormatCases) {
    // bf16 and f16 scales are f32 once a weight is prepared.
    const bool own = format.scale == ScaleType::kE8m0 || format.scale == ScaleType::kF32;
    if (format.element != Element::kBf16 && own) out.push_back(format);
  }
  return out;
}

INSTANTIATE_TEST_SUITE_P(formats, activation_scales_test, testing::ValuesIn(code_formats()),
                         [](const auto& format_case) {
                           std::string name = format_case.param.name;
                           for (char& c : name) c = c == '-' ? '_' : c;
                           return name;
                         });

/// value rounded once to 8 bits of mantissa, never finer than 2^-133.
std::uint16_t bf16_of(double value) {
  if (!std::isfinite(value)) return formats::encode_bf16(static_cast<float>(value));
  int exponent = 0;
  std::frexp(value, &exponent);
  const int last = std::max(exponent - 8, -133);
  return formats::encode_bf16(
      static_cast<float>(std::ldexp(std::nearbyint(std::ldexp(value, -last)), last)));
}

TEST(activation_scales_requantized_test, fp4_rounds_once_to_bf16_and_quantizes_at_224) {
  Random random(43);
  const test::PackedWeight w = test::packed_weight(random, Element::kE2m1, kN, kK);
  for (const ScaleType type : {ScaleType::kF32, ScaleType::kE8m0}) {
    const Foreign f = foreign(random, 24, type, 32, false);
    std::vector<std::uint16_t> x;
    for (std::int64_t i = 0; i < 24 * kK; ++i) {
      x.push_back(bf16_of(static_cast<double>(f.code(i / kK, i % kK)) *
                          static_cast<double>(f.scale(i / kK, i % kK))));
    }
    const Context context({.num_threads = 2});
    test::Output32 d(24, kN);
    gemm_f32(context, f.view, w.prepare(), d.view);
    EXPECT_EQ(d.bits, test::linear_bits(context, test::rows_of(x, 24, kK), w.published(),
                                        Activations::kQuantize224));
  }
}

/// Quantizing hides most roundings, so this one is looked at alone.
TEST(activation_scales_requantized_test, a_product_is_rounded_once) {
  // 9/8 of these is just above a tie of bf16, by less than f32 can say.
  std::vector<float> scales = {0xEB8E39p-23F, 0xEF1C72p-23F, 0xFD5556p-23F, 0xEB8E39p-140F};
  scales.insert(scales.end(), std::begin(kFiniteScales), std::end(kFiniteScales));
  scales.insert(scales.end(), std::begin(kAnyScales), std::end(kAnyScales));
  int twice_differs = 0;
  for (const float scale : scales) {
    for (int code = 0; code < 256; ++code) {
      const double product =
          static_cast<double>(formats::decode_e4m3fn(static_cast<std::uint8_t>(code))) *
          static_cast<double>(scale);
      EXPECT_EQ(activations::round_to_bf16(product), bf16_of(product)) << code << " " << scale;
      const std::uint16_t twice = formats::encode_bf16(static_cast<float>(product));
      twice_differs += twice != bf16_of(product) ? 1 : 0;
    }
  }
  EXPECT_GT(twice_differs, 0) << "no product of these could tell";
}

}  // namespace
}  // namespace deepinfer
