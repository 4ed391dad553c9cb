// Random weights of every format that kernels take, with the memory they view.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "deepinfer/weight.h"
#include "random_data.h"

namespace deepinfer::test {

struct FormatCase {
  const char* name;
  Element element;
  ScaleType scale;
  std::int64_t block_n;
  std::int64_t block_k;
};

constexpr std::int64_t kWhole = std::int64_t{1} << 40;  // a block as large as the weight

/// One list; tests walk it.
constexpr FormatCase kFormatCases[] = {
    {"bf16", Element::kBf16, ScaleType::kNone, 1, 32},
    {"fp8-32x32", Element::kE4m3fn, ScaleType::kE8m0, 32, 32},
    {"fp8-128x128-e8m0", Element::kE4m3fn, ScaleType::kE8m0, 128, 128},
    {"fp8-128x128-f32", Element::kE4m3fn, ScaleType::kF32, 128, 128},
    {"fp8-128x128-bf16", Element::kE4m3fn, ScaleType::kBf16, 128, 128},
    {"fp8-128x128-f16", Element::kE4m3fn, ScaleType::kF16, 128, 128},
    {"fp8-1x128-f32", Element::kE4m3fn, ScaleType::kF32, 1, 128},
    {"fp8-channel", Element::kE4m3fn, ScaleType::kF32, 1, kWhole},
    {"fp8-tensor", Element::kE4m3fn, ScaleType::kF32, kWhole, kWhole},
    {"mxfp8", Element::kE4m3fn, ScaleType::kE8m0, 1, 32},
    {"mxfp4", Element::kE2m1, ScaleType::kE8m0, 1, 32},
    {"fp4-1x32-f32", Element::kE2m1, ScaleType::kF32, 1, 32},
};

/// The name of a format as part of a test's name.
inline std::string name_of_format(const ::testing::TestParamInfo<FormatCase>& tested) {
  std::string name = tested.param.name;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

struct TestWeight {
  FormatCase format;
  std::vector<std::uint8_t> codes;
  std::vector<std::uint8_t> scales;
  WeightView view;

  Weight prepare() const { return Weight::prepare(view, format.name); }
};

/// Codes over their whole space, NaN codes only with `special`; a scale per block that differs from
/// its neighbours. `special` also draws e8m0 bytes 0 and 255.
inline TestWeight random_weight(Random& random, const FormatCase& format, std::int64_t n,
                                std::int64_t k, bool special = false) {
  TestWeight t;
  t.format = format;
  const std::int64_t row_bytes = code_row_bytes(format.element, k);
  t.codes = random.bytes(static_cast<std::size_t>(n * row_bytes));
  if (format.element == Element::kBf16) {
    for (std::size_t i = 0; i + 1 < t.codes.size(); i += 2) {
      const std::uint16_t code =
          special ? static_cast<std::uint16_t>(random.next()) : random.bf16(20);
      t.codes[i] = static_cast<std::uint8_t>(code & 0xFF);
      t.codes[i + 1] = static_cast<std::uint8_t>(code >> 8);
    }
  } else if (format.element == Element::kE4m3fn && !special) {
    for (std::uint8_t& c : t.codes) {
      if ((c & 0x7F) == 0x7F) c = static_cast<std::uint8_t>(c ^ 0x0F);
    }
  }
  WeightView& v = t.view;
  v.element = format.element;
  v.codes = t.codes.data();
  v.n = n;
  v.k = k;
  v.scale_type = format.scale;
  v.block_n = format.block_n;
  v.block_k = format.block_k;
  if (format.scale != ScaleType::kNone) {
    v.scale_rows = (n + v.block_n - 1) / v.block_n;
    v.scale_columns = (k + v.block_k - 1) / v.block_k;
    const auto count = static_cast<std::size_t>(v.scale_rows * v.scale_columns);
    t.scales.resize(count * static_cast<std::size_t>(scale_bytes(format.scale)));
    for (std::size_t i = 0; i < count; ++i) {
      std::uint8_t* at = t.scales.data() + i * static_cast<std::size_t>(scale_bytes(format.scale));
      const std::uint64_t u = random.next();
      const auto put16 = [&](std::uint64_t code) {
        at[0] = static_cast<std::uint8_t>(code & 0xFF);
        at[1] = static_cast<std::uint8_t>((code >> 8) & 0xFF);
      };
      switch (format.scale) {
        case ScaleType::kE8m0:
          at[0] = static_cast<std::uint8_t>(special ? u : 110 + u % 30);
          break;
        case ScaleType::kF32: {
          const std::uint64_t bits = (u & 0x7FFFFFU) | ((110 + (u >> 32) % 30) << 23);
          put16(bits);
          at += 2;
          put16(bits >> 16);
          break;
        }
        case ScaleType::kBf16:
          put16((u & 0x7FU) | ((110 + (u >> 32) % 30) << 7));
          break;
        default:
          put16((u & 0x3FFU) | ((1 + (u >> 32) % 29) << 10));
          break;
      }
    }
    v.scales = t.scales.data();
  }
  return t;
}

}  // namespace deepinfer::test
