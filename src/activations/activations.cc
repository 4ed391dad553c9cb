#include "activations/activations.h"

#include <algorithm>
#include <cstring>

#include "formats/bf16.h"
#include "formats/e4m3fn.h"
#include "formats/e8m0.h"

namespace deepinfer::activations {
namespace {

/// Row `i` of x as bf16, quantized where asked for; points into x where nothing changes.
const std::uint16_t* prepare_row(const kernels::RowKernels& rows, const MatrixView& x,
                                 Activations activations, std::int64_t i, std::uint16_t* scratch) {
  const std::int64_t stride = x.stride != 0 ? x.stride : x.columns;
  const formats::ScaleLimit limit =
      activations == Activations::kQuantize448 ? formats::kLimit448 : formats::kLimit224;
  if (x.type == FloatType::kBf16) {
    const auto* row = static_cast<const std::uint16_t*>(x.data) + i * stride;
    if (activations == Activations::kAsIs) return row;
    rows.quantize_bf16(row, x.columns, limit, scratch);
    return scratch;
  }
  const auto* row = static_cast<const float*>(x.data) + i * stride;
  if (activations == Activations::kAsIs) {
    for (std::int64_t c = 0; c < x.columns; ++c) scratch[c] = formats::encode_bf16(row[c]);
  } else {
    rows.quantize_f32(row, x.columns, limit, scratch);
  }
  return scratch;
}

constexpr std::int64_t kBlock = kernels::kBlock;

/// Whether code * scale is exact in bf16 and never among the values that kernels take for zero: a
/// power of two from 2^-91 to 2^119.
bool lies_inside(float scale) {
  constexpr std::uint32_t kMantissa = 0x7FFFFFU;
  constexpr std::uint32_t kLowest = 127 - 91;
  constexpr std::uint32_t kHighest = 127 + 119;
  const std::uint32_t bits = formats::bits_of(scale);
  const std::uint32_t sign_and_exponent = bits >> 23;
  return (bits & kMantissa) == 0 && sign_and_exponent >= kLowest && sign_and_exponent <= kHighest;
}

/// decode(code) * scale rounded once to bf16.
void decode_rounded(const std::uint8_t* codes, std::int64_t count, float scale,
                    std::uint16_t* out) {
  for (std::int64_t i = 0; i < count; ++i) {
    out[i] = round_to_bf16(static_cast<double>(formats::decode_e4m3fn(codes[i])) *
                           static_cast<double>(scale));
  }
}

}  // namespace

std::uint16_t round_to_bf16(double value) noexcept {
  // To f32 first, keeping what was lost as an odd last bit: the second rounding then sees on which
  // side of a tie the value was. Worked example: 1 + 2^-8 + 2^-40 becomes f32 1 + 2^-8, then with
  // the odd bit 1 + 2^-8 + 2^-23, which bf16 rounds up; without it, the tie would go down to 1.
  const auto nearest = static_cast<float>(value);
  std::uint32_t bits = formats::bits_of(nearest);
  const double back = static_cast<double>(nearest);
  if (back != value && (bits & formats::kMagnitudeBits) < formats::kInfinityBits) {
    const bool away = (back < 0 ? -back : back) > (value < 0 ? -value : value);
    if (away) --bits;
    bits |= 1U;
  }
  return formats::encode_bf16(formats::float_of(bits));
}

float scale_at(const QuantizedView& x, std::int64_t row, std::int64_t column) noexcept {
  const std::int64_t stride = x.scale_stride != 0 ? x.scale_stride : x.scale_columns;
  const std::int64_t at = row * stride + column * x.scale_column_stride;
  const auto* bytes = static_cast<const std::uint8_t*>(x.scales);
  if (x.scale_type == ScaleType::kE8m0) return formats::decode_e8m0(bytes[at]);
  float scale = 0.0F;
  std::memcpy(&scale, bytes + at * static_cast<std::int64_t>(sizeof(scale)), sizeof(scale));
  return scale;
}

std::int64_t arranged_row_bytes(std::int64_t k, const kernels::Arrangement& arrangement) noexcept {
  const std::int64_t chunks = (k + arrangement.chunk - 1) / arrangement.chunk;
  return chunks * arrangement.chunk * (arrangement.as_f32 ? 4 : 2);
}

void arrange_rows(const kernels::RowKernels& rows, const MatrixView& x, Activations activations,
                  const Target& target, std::int64_t begin, std::int64_t end,
                  std::uint16_t* scratch) noexcept {
  for (std::int64_t i = begin; i < end; ++i) {
    const std::int64_t from = target.source(i);
    if (from < 0) continue;
    const std::uint16_t* row = prepare_row(rows, x, activations, from, scratch);
    rows.arrange(row, x.columns, *target.arrangement, target.data + i * target.stride);
  }
}

void arrange_codes(const kernels::RowKernels& rows, const QuantizedView& x, bool requantize,
                   const Target& target, std::int64_t begin, std::int64_t end,
                   std::uint16_t* scratch, std::uint8_t* foreign) noexcept {
  const std::int64_t stride = x.stride != 0 ? x.stride : x.columns;
  for (std::int64_t i = begin; i < end; ++i) {
    const std::int64_t from = target.source(i);
    if (from < 0) continue;
    const auto* codes = static_cast<const std::uint8_t*>(x.codes) + from * stride;
    bool any_foreign = false;
    for (std::int64_t k0 = 0; k0 < x.columns; k0 += x.block_k) {
      const std::int64_t count = std::min(x.block_k, x.columns - k0);
      const float scale = scale_at(x, from, k0 / x.block_k);
      if (lies_inside(scale)) {
        rows.decode_e4m3fn(codes + k0, count, scale, scratch + k0);
      } else if (requantize) {
        decode_rounded(codes + k0, count, scale, scratch + k0);
      } else {
        any_foreign = true;
        rows.decode_e4m3fn(codes + k0, count, 1.0F, scratch + k0);
      }
    }
    if (requantize) {
      rows.quantize_bf16(scratch, x.columns, formats::kLimit224, scratch);
    } else {
      foreign[i] = any_foreign ? 1 : 0;
    }
    rows.arrange(scratch, x.columns, *target.arrangement, target.data + i * target.stride);
  }
}

void foreign_scales(const QuantizedView& x, std::int64_t row,
                    const kernels::Arrangement& arrangement, float* out) noexcept {
  const std::int64_t num_blocks = (x.columns + kBlock - 1) / kBlock;
  for (std::int64_t first = 0; first < num_blocks; first += kernels::kLanes) {
    for (int lane = 0; lane < kernels::kLanes; ++lane) {
      const std::int64_t block = first + arrangement.lane_block[lane];
      float scale = 1.0F;
      if (block < num_blocks) {
        const float own = scale_at(x, row, block * kBlock / x.block_k);
        if (!lies_inside(own)) scale = own;
      }
      out[first + lane] = scale;
    }
  }
}

}  // namespace deepinfer::activations
