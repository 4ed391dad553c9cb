// The bytes that quantize() writes, against the definition of the formats: the scale by searching
// for the smallest power of two, the code by trying every code. Nothing here calls the encoder.
#include "deepinfer/quantize.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "deepinfer/checkpoint.h"
#include "deepinfer/error.h"
#include "deepinfer/weight_map.h"
#include "random_data.h"
#include "safetensors_builder.h"

namespace deepinfer {
namespace {

using testing::SafetensorsBuilder;
using testing::TempDir;

// ---- The definition, in double, which holds every number here exactly.

struct Definition {
  const char* format;
  int bits;
  std::int64_t block_n;
  std::int64_t block_k;
  double limit;
  double floor;
};

// The floor is an f32: 1e-4 as a double is another number.
const Definition kDefinitions[] = {
    {"fp8-32x32", 8, 32, 32, 448, 1e-4F},
    {"fp8-128x128", 8, 128, 128, 448, 1e-4F},
    {"mxfp8", 8, 1, 32, 448, 1e-4F},
    {"mxfp4", 4, 1, 32, 6, 6 * 0x1p-126},
};

/// The value of a code without its sign bit.
double value_of(int bits, int code) {
  if (bits == 4) {
    constexpr double kE2m1[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    return kE2m1[code];
  }
  const int exponent = code >> 3;
  const int mantissa = code & 7;
  return exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
}

int nearest_code(int bits, double x) {
  const int last = bits == 4 ? 7 : 0x7E;
  const double magnitude = std::fabs(x);
  int best = 0;
  for (int code = 1; code <= last; ++code) {
    const double d = std::fabs(value_of(bits, code) - magnitude);
    const double nearest = std::fabs(value_of(bits, best) - magnitude);
    if (d < nearest || (d == nearest && code % 2 == 0)) best = code;
  }
  return best | (std::signbit(x) ? 1 << (bits - 1) : 0);
}

int smallest_scale(double amax, double limit) {
  int byte = 0;
  while (amax > limit * std::ldexp(1, byte - 127)) ++byte;
  return byte;
}

struct Quantized {
  std::vector<std::uint8_t> codes;
  std::vector<std::uint8_t> scales;
};

Quantized quantize_by_definition(const Definition& d, const std::vector<float>& w, std::int64_t n,
                                 std::int64_t k) {
  const std::int64_t columns = (k + d.block_k - 1) / d.block_k;
  const std::int64_t rows = (n + d.block_n - 1) / d.block_n;
  std::vector<double> amax(static_cast<std::size_t>(rows * columns), d.floor);
  for (std::int64_t i = 0; i < n * k; ++i) {
    double& a = amax[i / k / d.block_n * columns + i % k / d.block_k];
    a = std::max(a, std::fabs(static_cast<double>(w[i])));
  }
  Quantized out;
  for (const double a : amax) {
    out.scales.push_back(static_cast<std::uint8_t>(smallest_scale(a, d.limit)));
  }
  out.codes.assign(static_cast<std::size_t>(n * k * d.bits / 8), 0);
  for (std::int64_t i = 0; i < n * k; ++i) {
    const int byte = out.scales[i / k / d.block_n * columns + i % k / d.block_k];
    const int code = nearest_code(d.bits, std::ldexp(w[i], 127 - byte));
    if (d.bits == 8) {
      out.codes[i] = static_cast<std::uint8_t>(code);
    } else {  // even k in the low nibble
      out.codes[i / 2] = static_cast<std::uint8_t>(out.codes[i / 2] | code << (i % 2 * 4));
    }
  }
  return out;
}

// ---- Sources.

struct Source {
  DType dtype;
  std::vector<std::uint8_t> bytes;
  std::vector<float> values;
};

float widen_f16(std::uint16_t h) {
  const int exponent = (h >> 10) & 31;
  const int mantissa = h & 0x3FF;
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  return static_cast<float>((h & 0x8000) != 0 ? -magnitude : magnitude);
}

/// Finite numbers over many binades, with zeros of both signs, ties and subnormals among them.
Source random_source(test::Random& random, DType dtype, std::int64_t count) {
  Source source{dtype, {}, {}};
  for (std::int64_t i = 0; i < count; ++i) {
    std::uint32_t bits = 0;
    if (dtype == DType::kF16) {
      auto half = static_cast<std::uint16_t>(random.next());
      if ((half & 0x7C00) == 0x7C00) half = static_cast<std::uint16_t>(half & 0x83FF);
      source.bytes.push_back(static_cast<std::uint8_t>(half & 0xFF));
      source.bytes.push_back(static_cast<std::uint8_t>(half >> 8));
      source.values.push_back(widen_f16(half));
      continue;
    }
    bits = static_cast<std::uint32_t>(random.bf16(10)) << 16;
    if (dtype == DType::kF32) bits |= static_cast<std::uint32_t>(random.next() & 0xFFFF);
    if (i % 37 == 0) bits &= 0x80000000U;
    for (int shift = dtype == DType::kF32 ? 0 : 16; shift < 32; shift += 8) {
      source.bytes.push_back(static_cast<std::uint8_t>(bits >> shift));
    }
    float value = 0;
    std::memcpy(&value, &bits, sizeof(value));
    source.values.push_back(value);
  }
  return source;
}

/// Quantizes one matrix; the checkpoint that comes out.
class OneMatrix {
 public:
  OneMatrix(const char* format, DType dtype, std::int64_t n, std::int64_t k,
            const std::vector<std::uint8_t>& bytes, int threads = 2)
      : checkpoint_(run(format, dtype, n, k, bytes, threads)), map_(WeightMap::build(checkpoint_)) {
    EXPECT_TRUE(map_.problems().empty());
  }

  const MappedWeight& weight() const { return map_.at("up_proj"); }

 private:
  Checkpoint run(const char* format, DType dtype, std::int64_t n, std::int64_t k,
                 const std::vector<std::uint8_t>& bytes, int threads) {
    const auto in = dir_.path() / "in.safetensors";
    SafetensorsBuilder().add("up_proj.weight", dtype, {n, k}, bytes).write(in);
    const Context context({.num_threads = threads, .isa = std::nullopt});
    QuantizeOptions options;
    options.format = format;
    quantize(context, in, dir_.path() / "out", options);
    return Checkpoint::open(dir_.path() / "out");
  }

  TempDir dir_;
  Checkpoint checkpoint_;
  WeightMap map_;
};

std::vector<std::uint8_t> bytes_of(const Tensor& tensor) {
  const auto* data = reinterpret_cast<const std::uint8_t*>(tensor.view.data);
  return {data, data + tensor.view.size_bytes};
}

TEST(quantize_test, bytes_are_those_of_the_definition) {
  test::Random random(20);
  struct Shape {
    std::int64_t n;
    std::int64_t k;
  };
  for (const Definition& d : kDefinitions) {
    for (const DType dtype : {DType::kBf16, DType::kF16, DType::kF32}) {
      for (const auto [n, k] : {Shape{1, 2}, Shape{576, 144}, Shape{129, 70}, Shape{34, 512}}) {
        const Source source = random_source(random, dtype, n * k);
        const OneMatrix result(d.format, dtype, n, k, source.bytes);
        const Quantized expected = quantize_by_definition(d, source.values, n, k);
        const std::string where = std::string(d.format) + " from " +
                                  std::string(dtype_name(dtype)) + " " + shape_string({n, k});
        EXPECT_EQ(result.weight().format, d.format) << where;
        EXPECT_EQ(bytes_of(*result.weight().scales), expected.scales) << where;
        EXPECT_EQ(bytes_of(*result.weight().codes), expected.codes) << where;
      }
    }
  }
}

/// Every finite bf16 number as the only one of its block: all scales, all roundings at the
/// top of a block, and the floors.
TEST(quantize_test, every_bf16_amax_gets_the_smallest_scale) {
  constexpr std::int64_t kBlock = 2;  // columns; a block may be short
  std::vector<std::uint8_t> bytes;
  std::vector<float> values;
  for (std::uint32_t code = 0; code < 0x10000; ++code) {
    if ((code & 0x7F80) == 0x7F80) continue;
    const std::uint32_t bits = code << 16;
    float value = 0;
    std::memcpy(&value, &bits, sizeof(value));
    values.push_back(value);
    values.insert(values.end(), kBlock - 1, 0.0F);
    bytes.push_back(static_cast<std::uint8_t>(code & 0xFF));
    bytes.push_back(static_cast<std::uint8_t>(code >> 8));
    bytes.insert(bytes.end(), 2 * (kBlock - 1), 0);
  }
  const auto n = static_cast<std::int64_t>(values.size()) / kBlock;
  for (const Definition& d : kDefinitions) {
    if (d.block_n != 1) continue;
    const OneMatrix result(d.format, DType::kBf16, n, kBlock, bytes);
    const Quantized expected = quantize_by_definition(d, values, n, kBlock);
    EXPECT_EQ(bytes_of(*result.weight().scales), expected.scales) << d.format;
    EXPECT_EQ(bytes_of(*result.weight().codes), expected.codes) << d.format;
  }
}

/// A float log2 goes wrong one ulp above a power of two (case 15); so does a sum that is off by
/// one.
TEST(quantize_test, case_015_the_scale_steps_right_above_the_limit) {
  std::vector<std::uint8_t> bytes;
  std::vector<float> values;
  for (const float limit : {448.0F, 6.0F}) {
    for (int e = -100; e <= 100; ++e) {
      const float edge = std::ldexp(limit, e);
      for (const float amax : {std::nextafter(edge, 0.0F), edge, std::nextafter(edge, INFINITY)}) {
        values.insert(values.end(), {amax, -amax / 3});
      }
    }
  }
  bytes.resize(values.size() * sizeof(float));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  const auto n = static_cast<std::int64_t>(values.size()) / 2;
  for (const Definition& d : kDefinitions) {
    const OneMatrix result(d.format, DType::kF32, n, 2, bytes);
    const Quantized expected = quantize_by_definition(d, values, n, 2);
    EXPECT_EQ(bytes_of(*result.weight().scales), expected.scales) << d.format;
    EXPECT_EQ(bytes_of(*result.weight().codes), expected.codes) << d.format;
  }
}

/// Values of a quantized matrix, by the definition.
std::vector<double> values_of(const MappedWeight& w, int bits) {
  const WeightView& v = w.view;
  const std::vector<std::uint8_t> codes = bytes_of(*w.codes);
  const std::vector<std::uint8_t> scales = bytes_of(*w.scales);
  std::vector<double> out;
  for (std::int64_t i = 0; i < v.n * v.k; ++i) {
    const int scale = scales[i / v.k / v.block_n * v.scale_columns + i % v.k / v.block_k];
    const int code = bits == 8 ? codes[i] : codes[i / 2] >> (i % 2 * 4) & 15;
    const int sign = 1 << (bits - 1);
    EXPECT_NE(code & (sign - 1), bits == 8 ? 0x7F : -1) << "NaN at " << i;
    EXPECT_NE(scale, 255) << "NaN scale at " << i;
    const double magnitude = std::ldexp(value_of(bits, code & (sign - 1)), scale - 127);
    out.push_back((code & sign) != 0 ? -magnitude : magnitude);
  }
  return out;
}

TEST(quantize_test, case_050_all_zero_blocks) {
  constexpr std::int64_t kSide = 256;
  std::vector<std::uint8_t> bytes(2 * kSide * kSide, 0);
  bytes[0] = 0x80;  // 1.0 in bf16
  bytes[1] = 0x3F;
  for (const Definition& d : kDefinitions) {
    const OneMatrix result(d.format, DType::kBf16, kSide, kSide, bytes);
    const std::vector<double> values = values_of(result.weight(), d.bits);
    EXPECT_EQ(values.front(), 1.0) << d.format;
    for (std::size_t i = 1; i < values.size(); ++i) ASSERT_EQ(values[i], 0.0) << d.format << i;
    // The floor: 1e-4 gives byte 105 at limit 448, 6 * 2^-126 byte 1 at limit 6.
    const WeightView& view = result.weight().view;
    const std::vector<std::uint8_t> scales = bytes_of(*result.weight().scales);
    ASSERT_EQ(scales.size(), static_cast<std::size_t>(view.scale_rows * view.scale_columns));
    for (std::size_t i = 1; i < scales.size(); ++i) {
      EXPECT_EQ(scales[i], d.bits == 8 ? 105 : 1) << d.format;
    }
  }
}

TEST(quantize_test, case_018_the_rule_rounds_up_and_never_clips) {
  // amax 960 = 448 * 2^1.1: scale 4, byte 129. The floor rule would clip to 896.
  const std::vector<std::uint8_t> bytes = {0x70, 0x44, 0x70, 0xC4};  // 960, -960
  const OneMatrix result("mxfp8", DType::kBf16, 1, 2, bytes);
  EXPECT_EQ(bytes_of(*result.weight().scales), std::vector<std::uint8_t>{129});
  EXPECT_EQ(values_of(result.weight(), 8), (std::vector<double>{960, -960}));
}

TEST(quantize_test, f32_and_f16_become_bf16_nearest_even) {
  // 1 + 2^-8 and 1 + 3 * 2^-8 are ties of bf16: down to 1, up to 1 + 2^-6.
  std::vector<std::uint8_t> bytes;
  for (const std::uint32_t bits : {0x3F808000U, 0x3F818000U, 0x80000000U, 0x00018001U}) {
    for (int shift = 0; shift < 32; shift += 8) {
      bytes.push_back(static_cast<std::uint8_t>(bits >> shift));
    }
  }
  const OneMatrix result("bf16", DType::kF32, 2, 2, bytes);
  EXPECT_EQ(result.weight().format, "bf16");
  EXPECT_EQ(bytes_of(*result.weight().codes),
            (std::vector<std::uint8_t>{0x80, 0x3F, 0x82, 0x3F, 0x00, 0x80, 0x02, 0x00}));
  const OneMatrix half("bf16", DType::kF16, 1, 2, {0x00, 0x3C, 0x00, 0xC0});  // 1, -2
  EXPECT_EQ(bytes_of(*half.weight().codes), (std::vector<std::uint8_t>{0x80, 0x3F, 0x00, 0xC0}));
}

/// The message of the Error that quantizing this matrix throws.
std::string refusal(const char* format, DType dtype, std::int64_t n, std::int64_t k,
                    const std::vector<std::uint8_t>& bytes, ErrorCode code, int threads = 1) {
  try {
    const OneMatrix result(format, dtype, n, k, bytes, threads);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "accepted";
  return "";
}

TEST(quantize_test, a_nan_or_infinite_weight_is_named_by_its_place) {
  constexpr std::int64_t kN = 200;
  constexpr std::int64_t kK = 64;
  std::vector<std::uint8_t> bytes(2 * kN * kK, 0);
  const auto set = [&](std::int64_t row, std::int64_t column, std::uint8_t low) {
    bytes[2 * (row * kK + column)] = low;
    bytes[2 * (row * kK + column) + 1] = 0x7F;
  };
  set(37, 41, 0xC0);  // NaN
  set(37, 60, 0x80);  // infinity
  set(150, 2, 0xC0);  // in the share of another thread
  for (const Definition& d : kDefinitions) {
    for (const int threads : {1, 2, 3}) {
      const std::string message =
          refusal(d.format, DType::kBf16, kN, kK, bytes, ErrorCode::kBadInput, threads);
      EXPECT_NE(message.find("\"up_proj.weight\" row 37, column 41 is nan"), std::string::npos)
          << message;
    }
  }
  // 3.4e38 is finite in f32 and infinite in bf16.
  const std::string message =
      refusal("bf16", DType::kF32, 1, 1, {0xFF, 0xFF, 0x7F, 0x7F}, ErrorCode::kBadInput);
  EXPECT_NE(message.find("row 0, column 0"), std::string::npos) << message;
}

TEST(quantize_test, odd_k_of_mxfp4_is_refused_by_name) {
  const std::string message = refusal("mxfp4", DType::kBf16, 2, 3, std::vector<std::uint8_t>(12, 0),
                                      ErrorCode::kUnsupported);
  EXPECT_NE(message.find("\"up_proj.weight\""), std::string::npos) << message;
  EXPECT_NE(message.find("must be even, found [2, 3]"), std::string::npos) << message;
}

}  // namespace
}  // namespace deepinfer
