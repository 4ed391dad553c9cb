#include "weights/weight.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "deepinfer/error.h"
#include "formats/bf16.h"
#include "formats/e8m0.h"
#include "formats/f16.h"

namespace deepinfer {
namespace {

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

[[noreturn]] void refuse(std::string_view name, const std::string& what) {
  throw Error(ErrorCode::kInvalidArgument, fmt::format("weight '{}': {}", name, what));
}

int scale_bytes(ScaleType type) {
  switch (type) {
    case ScaleType::kNone:
      return 0;
    case ScaleType::kE8m0:
      return 1;
    case ScaleType::kF32:
      return 4;
    case ScaleType::kBf16:
    case ScaleType::kF16:
      return 2;
  }
  return 0;
}

float decode_scale(ScaleType type, const unsigned char* at) {
  if (type == ScaleType::kF32) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, at, sizeof(bits));
    return formats::float_of(bits);
  }
  std::uint16_t code = 0;
  std::memcpy(&code, at, sizeof(code));
  return type == ScaleType::kBf16 ? formats::decode_bf16(code) : formats::decode_f16(code);
}

void check_shapes(const WeightView& v, std::string_view name) {
  if (v.n < 0 || v.k < 0) refuse(name, fmt::format("shape [{}, {}] is negative", v.n, v.k));
  if (v.element == Element::kE2m1 && v.k % 2 != 0) {
    refuse(name,
           fmt::format("e2m1 holds two codes in a byte, so k must be even, found k = {}", v.k));
  }
  const std::int64_t dense = code_row_bytes(v.element, v.k);
  if (v.row_bytes != 0 && v.row_bytes < dense) {
    refuse(name, fmt::format("rows are {} bytes apart, expected at least {}", v.row_bytes, dense));
  }
  if (v.codes == nullptr && v.n > 0 && v.k > 0) refuse(name, "codes are null");
  const bool scaled = v.element != Element::kBf16;
  if (scaled != (v.scale_type != ScaleType::kNone)) {
    refuse(name, scaled ? "fp8 and fp4 codes need scales, none were given"
                        : "bf16 weights have no scales, but some were given");
  }
  if (!scaled) return;
  if (v.block_n < 1 || (v.block_k % 32 != 0 && v.block_k < v.k) || v.block_k < 1) {
    refuse(name, fmt::format("blocks of {} x {} are not supported: block_n must be at least 1, "
                             "block_k a multiple of 32 or all of k",
                             v.block_n, v.block_k));
  }
  const std::int64_t rows = ceil_div(v.n, v.block_n);
  const std::int64_t columns = ceil_div(v.k, v.block_k);
  if (v.scale_rows != rows || v.scale_columns != columns) {
    refuse(name, fmt::format("scale grid for [{}, {}] in blocks of {} x {}: expected [{}, {}], "
                             "found [{}, {}]",
                             v.n, v.k, v.block_n, v.block_k, rows, columns, v.scale_rows,
                             v.scale_columns));
  }
  if (v.scales == nullptr && rows * columns > 0) refuse(name, "scales are null");
}

std::vector<float> widen_scales(const WeightView& v, std::string_view name) {
  std::vector<float> out(static_cast<std::size_t>(v.scale_rows * v.scale_columns));
  const auto* bytes = static_cast<const unsigned char*>(v.scales);
  for (std::size_t i = 0; i < out.size(); ++i) {
    const float scale = decode_scale(v.scale_type, bytes + i * scale_bytes(v.scale_type));
    const std::uint32_t bits = formats::bits_of(scale);
    const bool zero = (bits & formats::kMagnitudeBits) == 0;
    if (!zero && bits >= formats::kInfinityBits) {  // negative, infinite or NaN
      const auto columns = static_cast<std::size_t>(v.scale_columns);
      refuse(name, fmt::format("scale [{}, {}] is {}: scales are finite and not negative",
                               i / columns, i % columns, scale));
    }
    out[i] = zero ? 0.0F : scale;
  }
  return out;
}

}  // namespace

std::int64_t code_row_bytes(Element element, std::int64_t k) noexcept {
  switch (element) {
    case Element::kBf16:
      return 2 * k;
    case Element::kE4m3fn:
      return k;
    case Element::kE2m1:
      return k / 2;
  }
  return 0;
}

Weight Weight::prepare(const WeightView& view, std::string_view name) {
  check_shapes(view, name);
  Weight weight;
  weight.view_ = view;
  if (view.row_bytes == 0) weight.view_.row_bytes = code_row_bytes(view.element, view.k);
  if (view.scale_type != ScaleType::kNone && view.scale_type != ScaleType::kE8m0) {
    weight.f32_scales_ = widen_scales(view, name);
  }
  return weight;
}

std::int64_t Weight::bytes() const noexcept {
  return view_.n * code_row_bytes(view_.element, view_.k) +
         view_.scale_rows * view_.scale_columns * scale_bytes(view_.scale_type);
}

namespace weights {
namespace {

std::int64_t padded_blocks(std::int64_t k) {
  return ceil_div(k, kernels::kSuperblock) * kernels::kLanes;
}

/// One row of the grid spread out to f32 per 32 k, in the kernel's lane order; 1 past the end.
void spread(const Weight& weight, std::int64_t grid_row, const std::uint8_t* lane_block,
            float* out) {
  const WeightView& v = weight.view();
  const std::int64_t num_blocks = ceil_div(v.k, kernels::kBlock);
  const std::int64_t first = grid_row * v.scale_columns;
  for (std::int64_t i = 0; i < padded_blocks(v.k); ++i) {
    const std::int64_t lane = i % kernels::kLanes;
    const std::int64_t block = i - lane + lane_block[lane];
    if (block >= num_blocks) {
      out[i] = 1.0F;
      continue;
    }
    const std::int64_t at = first + block * kernels::kBlock / v.block_k;
    out[i] = v.scale_type == ScaleType::kE8m0
                 ? formats::decode_e8m0(static_cast<const std::uint8_t*>(v.scales)[at])
                 : weight.f32_scales()[static_cast<std::size_t>(at)];
  }
}

}  // namespace

kernels::Scales scales_kind(const Weight& weight) noexcept {
  const WeightView& v = weight.view();
  if (v.scale_type == ScaleType::kNone) return kernels::Scales::kNone;
  const bool byte_per_32 = v.scale_type == ScaleType::kE8m0 && v.block_k == kernels::kBlock;
  return byte_per_32 ? kernels::Scales::kE8m0 : kernels::Scales::kF32;
}

std::int64_t rows_per_call(const Weight& weight, std::int64_t first, std::int64_t limit) noexcept {
  const WeightView& v = weight.view();
  if (v.scale_type == ScaleType::kNone || v.block_n == 1) return limit;
  return std::min(limit, v.block_n - first % v.block_n);
}

std::int64_t scale_scratch_bytes(const Weight& weight, std::int64_t count) noexcept {
  if (scales_kind(weight) != kernels::Scales::kF32) return 0;
  const std::int64_t rows = weight.view().block_n == 1 ? count : 1;
  return rows * padded_blocks(weight.k()) * static_cast<std::int64_t>(sizeof(float));
}

ScaleRows scale_rows(const Weight& weight, std::int64_t first, std::int64_t count,
                     const kernels::Arrangement& arrangement, void* scratch) noexcept {
  const WeightView& v = weight.view();
  const std::int64_t grid_row = first / v.block_n;
  switch (scales_kind(weight)) {
    case kernels::Scales::kNone:
      return {nullptr, 0};
    case kernels::Scales::kE8m0:
      return {static_cast<const std::uint8_t*>(v.scales) + grid_row * v.scale_columns,
              v.block_n == 1 ? v.scale_columns : 0};
    case kernels::Scales::kF32:
      break;
  }
  float* out = static_cast<float*>(scratch);
  if (v.block_n != 1) {
    spread(weight, grid_row, arrangement.lane_block, out);
    return {out, 0};
  }
  const std::int64_t row_floats = padded_blocks(v.k);
  for (std::int64_t i = 0; i < count; ++i) {
    spread(weight, first + i, arrangement.lane_block, out + i * row_floats);
  }
  return {out, row_floats * static_cast<std::int64_t>(sizeof(float))};
}

}  // namespace weights
}  // namespace deepinfer
