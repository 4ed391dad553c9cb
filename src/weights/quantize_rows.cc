#include "weights/quantize_rows.h"

#include <algorithm>
#include <cstring>

#include "deepinfer/weight.h"
#include "formats/bf16.h"
#include "formats/e2m1.h"
#include "formats/e4m3fn.h"
#include "formats/e8m0.h"
#include "formats/f16.h"

namespace deepinfer::weights {
namespace {

using formats::bits_of;
using formats::float_of;

std::int64_t ceil_div(std::int64_t a, std::int64_t b) noexcept { return (a + b - 1) / b; }

std::uint16_t load_16(const std::byte* at) noexcept {
  std::uint16_t code = 0;
  std::memcpy(&code, at, sizeof(code));
  return code;
}

/// Row `row` as f32, which holds every bf16 and f16 exactly.
void widen_row(const NumberMatrix& m, std::int64_t row, float* out) noexcept {
  if (m.dtype == DType::kF32) {
    std::memcpy(out, m.data + row * m.k * 4, static_cast<std::size_t>(m.k) * 4);
    return;
  }
  const std::byte* at = m.data + row * m.k * 2;
  if (m.dtype == DType::kBf16) {
    for (std::int64_t i = 0; i < m.k; ++i) out[i] = formats::decode_bf16(load_16(at + 2 * i));
  } else {
    for (std::int64_t i = 0; i < m.k; ++i) out[i] = formats::decode_f16(load_16(at + 2 * i));
  }
}

/// The largest magnitude as bits: magnitudes order as integers do, and a NaN is above infinity.
std::int32_t largest_magnitude(const float* x, std::int64_t count) noexcept {
  std::int32_t largest = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto magnitude = static_cast<std::int32_t>(bits_of(x[i]) & formats::kMagnitudeBits);
    largest = std::max(largest, magnitude);
  }
  return largest;
}

bool is_finite(float x) noexcept {
  return (bits_of(x) & formats::kMagnitudeBits) < formats::kInfinityBits;
}

/// The first number of a row that is not finite, or nothing.
std::optional<BadNumber> find_bad(const float* row, std::int64_t index, std::int64_t k) noexcept {
  const float* bad = std::find_if_not(row, row + k, is_finite);
  if (bad == row + k) return std::nullopt;
  return BadNumber{index, bad - row, *bad};
}

/// x / s, for a block of finite numbers that do not exceed limit * s.
void encode_e4m3fn(const float* x, std::int64_t count, float inverse, std::uint8_t* out) noexcept {
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint32_t u = bits_of(x[i] * inverse);
    const std::uint32_t magnitude =
        formats::round_e4m3fn_magnitude(float_of(u & formats::kMagnitudeBits));
    out[i] = static_cast<std::uint8_t>(((u >> 24) & 0x80U) | magnitude);
  }
}

/// Two codes a byte, even k in the low nibble; block and row lengths are even.
void encode_e2m1(const float* x, std::int64_t count, float inverse, std::uint8_t* out) noexcept {
  for (std::int64_t i = 0; i < count / 2; ++i) {
    const std::uint32_t low = formats::encode_e2m1(x[2 * i] * inverse);
    const std::uint32_t high = formats::encode_e2m1(x[2 * i + 1] * inverse);
    out[i] = static_cast<std::uint8_t>(low | high << 4);
  }
}

/// 1 / 2^(byte - 127), exact: bytes that are chosen here lie in 1..253.
float inverse_of(std::uint8_t byte) noexcept {
  return formats::decode_e8m0(static_cast<std::uint8_t>(2 * formats::kE8m0One - byte));
}

/// Scales of `count` rows, fewer than block_n only at the end of the matrix.
std::optional<BadNumber> choose_scales(const NumberMatrix& m, std::int64_t first,
                                       std::int64_t count, const BlockFormat& format,
                                       std::uint8_t* scales, float* row, float* largest) noexcept {
  const std::int64_t columns = ceil_div(m.k, format.block_k);
  std::fill_n(largest, columns, 0.0F);
  for (std::int64_t r = first; r < first + count; ++r) {
    widen_row(m, r, row);
    std::int32_t row_largest = 0;
    for (std::int64_t c = 0; c < columns; ++c) {
      const std::int64_t begin = c * format.block_k;
      const std::int32_t found =
          largest_magnitude(row + begin, std::min(format.block_k, m.k - begin));
      largest[c] = std::max(largest[c], float_of(static_cast<std::uint32_t>(found)));
      row_largest = std::max(row_largest, found);
    }
    if (row_largest >= static_cast<std::int32_t>(formats::kInfinityBits)) {
      return find_bad(row, r, m.k);
    }
  }
  for (std::int64_t c = 0; c < columns; ++c) {
    scales[c] = static_cast<std::uint8_t>(formats::choose_scale_byte(largest[c], format.limit));
  }
  return std::nullopt;
}

}  // namespace

std::int64_t scratch_floats(const NumberMatrix& matrix, const BlockFormat& format) noexcept {
  return matrix.k + ceil_div(matrix.k, format.block_k);
}

std::optional<BadNumber> quantize_rows(const NumberMatrix& m, std::int64_t first,
                                       std::int64_t count, const BlockFormat& format,
                                       std::uint8_t* codes, std::uint8_t* scales,
                                       float* scratch) noexcept {
  const std::int64_t columns = ceil_div(m.k, format.block_k);
  const std::int64_t code_bytes = code_row_bytes(format.element, m.k);
  float* row = scratch;
  float* largest = scratch + m.k;
  for (std::int64_t block = first; block < first + count; block += format.block_n) {
    const std::int64_t rows = std::min(format.block_n, first + count - block);
    if (const auto bad = choose_scales(m, block, rows, format, scales, row, largest)) return bad;
    for (std::int64_t r = block; r < block + rows; ++r) {
      if (rows > 1) widen_row(m, r, row);  // else it is still there
      for (std::int64_t c = 0; c < columns; ++c) {
        const std::int64_t begin = c * format.block_k;
        const std::int64_t length = std::min(format.block_k, m.k - begin);
        if (format.element == Element::kE4m3fn) {
          encode_e4m3fn(row + begin, length, inverse_of(scales[c]), codes + begin);
        } else {
          encode_e2m1(row + begin, length, inverse_of(scales[c]), codes + begin / 2);
        }
      }
      codes += code_bytes;
    }
    scales += columns;
  }
  return std::nullopt;
}

std::optional<BadNumber> round_rows_to_bf16(const NumberMatrix& m, std::int64_t first,
                                            std::int64_t count, std::uint8_t* out,
                                            float* scratch) noexcept {
  for (std::int64_t r = first; r < first + count; ++r) {
    widen_row(m, r, scratch);
    for (std::int64_t i = 0; i < m.k; ++i) {
      const std::uint16_t code = formats::encode_bf16(scratch[i]);
      if (!is_finite(formats::decode_bf16(code))) return BadNumber{r, i, scratch[i]};
      std::memcpy(out, &code, sizeof(code));
      out += sizeof(code);
    }
  }
  return std::nullopt;
}

}  // namespace deepinfer::weights
