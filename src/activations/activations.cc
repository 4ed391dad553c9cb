#include "activations/activations.h"

#include <cstddef>

#include "formats/bf16.h"

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

}  // namespace

std::int64_t arranged_row_bytes(std::int64_t k, const kernels::Arrangement& arrangement) noexcept {
  const std::int64_t chunks = (k + arrangement.chunk - 1) / arrangement.chunk;
  return chunks * arrangement.chunk * (arrangement.as_f32 ? 4 : 2);
}

void arrange_rows(const kernels::RowKernels& rows, const MatrixView& x, Activations activations,
                  const kernels::Arrangement& arrangement, std::int64_t begin, std::int64_t end,
                  std::uint16_t* scratch, std::byte* out, std::int64_t stride) noexcept {
  for (std::int64_t i = begin; i < end; ++i) {
    const std::uint16_t* row = prepare_row(rows, x, activations, i, scratch);
    rows.arrange(row, x.columns, arrangement, out + i * stride);
  }
}

}  // namespace deepinfer::activations
