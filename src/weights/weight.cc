#include "weights/weight.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "deepinfer/error.h"
#include "formats/bf16.h"
#include "formats/e8m0.h"
#include "formats/f16.h"

namespace deepinfer {
namespace {

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

/// Blocks that `count` things touch when the first lies `offset` into its block; cannot overflow.
std::int64_t blocks_of(std::int64_t offset, std::int64_t count, std::int64_t block) {
  if (count == 0) return 0;
  const std::int64_t in_first = block - offset;
  return count <= in_first ? 1 : 1 + ceil_div(count - in_first, block);
}

[[noreturn]] void refuse(std::string_view name, const std::string& what) {
  throw Error(ErrorCode::kInvalidArgument, fmt::format("weight '{}': {}", name, what));
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

/// Later arithmetic on the sizes cannot overflow.
void check_sizes(const WeightView& v, std::string_view name) {
  if (v.n < 0 || v.k < 0) refuse(name, fmt::format("shape [{}, {}] is negative", v.n, v.k));
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max() / 4;  // a scale's bytes
  std::int64_t bytes = 0;
  if (v.k > kMost || v.scale_rows > kMost || v.scale_columns > kMost ||
      __builtin_mul_overflow(v.n, std::max(v.row_bytes, 2 * v.k), &bytes) ||
      __builtin_mul_overflow(v.scale_rows * 4, std::max(v.scale_stride, v.scale_columns), &bytes)) {
    refuse(name, fmt::format("[{}, {}] covers more bytes than there are addresses", v.n, v.k));
  }
}

void check_shapes(const WeightView& v, std::string_view name) {
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
  if (v.row_offset < 0 || v.row_offset >= v.block_n) {
    refuse(name,
           fmt::format("row offset {} is not inside a block of {} rows", v.row_offset, v.block_n));
  }
  const bool whole_block = v.block_k - v.column_offset >= v.k;
  if (v.column_offset < 0 || v.column_offset >= v.block_k ||
      (v.column_offset % 32 != 0 && !whole_block)) {
    refuse(name,
           fmt::format("column offset {} is not a multiple of 32 inside a block of {} columns",
                       v.column_offset, v.block_k));
  }
  const std::int64_t rows = blocks_of(v.row_offset, v.n, v.block_n);
  const std::int64_t columns = blocks_of(v.column_offset, v.k, v.block_k);
  if (v.scale_rows != rows || v.scale_columns != columns) {
    refuse(name, fmt::format("scale grid for [{}, {}] in blocks of {} x {}: expected [{}, {}], "
                             "found [{}, {}]",
                             v.n, v.k, v.block_n, v.block_k, rows, columns, v.scale_rows,
                             v.scale_columns));
  }
  if (v.scale_stride != 0 && v.scale_stride < columns) {
    refuse(name, fmt::format("rows of scales are {} apart, expected at least {}", v.scale_stride,
                             columns));
  }
  if (v.scales == nullptr && rows * columns > 0) refuse(name, "scales are null");
}

std::vector<float> widen_scales(const WeightView& v, std::string_view name) {
  std::vector<float> out(static_cast<std::size_t>(v.scale_rows * v.scale_columns));
  const auto* bytes = static_cast<const unsigned char*>(v.scales);
  const std::int64_t stride = v.scale_stride != 0 ? v.scale_stride : v.scale_columns;
  for (std::size_t i = 0; i < out.size(); ++i) {
    const auto columns = static_cast<std::size_t>(v.scale_columns);
    const std::size_t at = i / columns * static_cast<std::size_t>(stride) + i % columns;
    const float scale = decode_scale(v.scale_type, bytes + at * scale_bytes(v.scale_type));
    const std::uint32_t bits = formats::bits_of(scale);
    const bool zero = (bits & formats::kMagnitudeBits) == 0;
    if (!zero && bits >= formats::kInfinityBits) {  // negative, infinite or NaN
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

std::int64_t scale_bytes(ScaleType type) noexcept {
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

WeightView slice(const WeightView& view, std::int64_t row, std::int64_t n, std::int64_t column,
                 std::int64_t k) {
  const auto check = [](const char* what, std::int64_t first, std::int64_t count,
                        std::int64_t all) {
    if (first < 0 || count < 0 || first > all || count > all - first) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("slice: {} [{}, {} + {}) of {}", what, first, first, count, all));
    }
  };
  check("rows", row, n, view.n);
  check("columns", column, k, view.k);
  if (column % 32 != 0 || (view.element == Element::kE2m1 && k % 2 != 0)) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("slice: columns [{}, {} + {}): a slice starts at a multiple of 32, and "
                            "holds whole bytes",
                            column, column, k));
  }
  WeightView out = view;
  out.n = n;
  out.k = k;
  out.row_bytes = view.row_bytes != 0 ? view.row_bytes : code_row_bytes(view.element, view.k);
  if (view.codes != nullptr) {
    out.codes = static_cast<const std::uint8_t*>(view.codes) + row * out.row_bytes +
                code_row_bytes(view.element, column);
  }
  if (view.scale_type == ScaleType::kNone) return out;
  const std::int64_t first_row = view.row_offset + row;
  const std::int64_t first_column = view.column_offset + column;
  out.scale_stride = view.scale_stride != 0 ? view.scale_stride : view.scale_columns;
  out.row_offset = first_row % view.block_n;
  out.column_offset = first_column % view.block_k;
  out.scale_rows = blocks_of(out.row_offset, n, view.block_n);
  out.scale_columns = blocks_of(out.column_offset, k, view.block_k);
  if (view.scales != nullptr) {
    const std::int64_t at =
        first_row / view.block_n * out.scale_stride + first_column / view.block_k;
    out.scales = static_cast<const std::uint8_t*>(view.scales) + at * scale_bytes(view.scale_type);
  }
  return out;
}

Weight Weight::prepare(const WeightView& view, std::string_view name) {
  check_sizes(view, name);
  check_shapes(view, name);
  Weight weight;
  weight.view_ = view;
  if (view.row_bytes == 0) weight.view_.row_bytes = code_row_bytes(view.element, view.k);
  if (view.scale_stride == 0) weight.view_.scale_stride = view.scale_columns;
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
  for (std::int64_t i = 0; i < padded_blocks(v.k); ++i) {
    const std::int64_t lane = i % kernels::kLanes;
    const std::int64_t block = i - lane + lane_block[lane];
    if (block >= num_blocks) {
      out[i] = 1.0F;
      continue;
    }
    const std::int64_t column = (v.column_offset + block * kernels::kBlock) / v.block_k;
    if (v.scale_type == ScaleType::kE8m0) {
      const std::int64_t at = grid_row * v.scale_stride + column;
      out[i] = formats::decode_e8m0(static_cast<const std::uint8_t*>(v.scales)[at]);
    } else {
      const std::int64_t at = grid_row * v.scale_columns + column;
      out[i] = weight.f32_scales()[static_cast<std::size_t>(at)];
    }
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
  return std::min(limit, v.block_n - (v.row_offset + first) % v.block_n);
}

std::int64_t spread_bytes(const Weight& weight, std::int64_t count) noexcept {
  const std::int64_t rows = weight.view().block_n == 1 ? count : 1;
  return rows * padded_blocks(weight.k()) * static_cast<std::int64_t>(sizeof(float));
}

SpreadRows spread_rows(const Weight& weight, std::int64_t first, std::int64_t count,
                       const kernels::Arrangement& arrangement, float* out) noexcept {
  const WeightView& v = weight.view();
  const std::int64_t row_floats = padded_blocks(v.k);
  const std::int64_t rows = v.block_n == 1 ? count : 1;
  for (std::int64_t i = 0; i < rows; ++i) {
    spread(weight, (v.row_offset + first + i) / v.block_n, arrangement.lane_block,
           out + i * row_floats);
  }
  return {rows, row_floats};
}

std::int64_t scale_scratch_bytes(const Weight& weight, std::int64_t count) noexcept {
  return scales_kind(weight) == kernels::Scales::kF32 ? spread_bytes(weight, count) : 0;
}

ScaleRows scale_rows(const Weight& weight, std::int64_t first, std::int64_t count,
                     const kernels::Arrangement& arrangement, void* scratch) noexcept {
  const WeightView& v = weight.view();
  const std::int64_t grid_row = (v.row_offset + first) / v.block_n;
  switch (scales_kind(weight)) {
    case kernels::Scales::kNone:
      return {nullptr, 0};
    case kernels::Scales::kE8m0:
      return {static_cast<const std::uint8_t*>(v.scales) + grid_row * v.scale_stride,
              v.block_n == 1 ? v.scale_stride : 0};
    case kernels::Scales::kF32:
      break;
  }
  auto* out = static_cast<float*>(scratch);
  const SpreadRows rows = spread_rows(weight, first, count, arrangement, out);
  const std::int64_t stride = rows.row_floats * static_cast<std::int64_t>(sizeof(float));
  return {out, v.block_n == 1 ? stride : 0};
}

}  // namespace weights
}  // namespace deepinfer
