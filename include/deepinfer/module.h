// The block-quantized GEMM layer of a model, under the names of the module that it implements: what
// feeds DeepSeek-V4.1's fp8 and fp4 weights to kernels. docs/module.md has the table of names.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "deepinfer/export.h"
#include "deepinfer/linear.h"
#include "deepinfer/prepared_weight.h"
#include "deepinfer/quantized.h"

namespace deepinfer {

// Questions. None of them has side effects.

/// Whether this build and CPU can compute y [m, n] = a [m, k] . b^T: b is prepared (not null) for
/// this k and n, a fits, and the `gemm` switch is on. Any n and any k, every instruction set.
DEEPINFER_API bool supported(const Context& context, const QuantizedView& a,
                             const PreparedWeight* b, std::int64_t k, std::int64_t n) noexcept;

/// The module's own gate, narrower than supported(): k % 128 == 0 and n % 32 == 0.
DEEPINFER_API bool fits_module_gate(std::int64_t k, std::int64_t n) noexcept;

/// Whether `w` is prepared and the `gemm` switch is on.
DEEPINFER_API bool has_kernel(const Context& context, const PreparedWeight* w) noexcept;

/// Whether n columns are first divided in two halves: the `split2` switch is on and n % 256 == 0.
/// The bits are the same either way.
DEEPINFER_API bool splits_in_two(const Context& context, std::int64_t n) noexcept;

/// Where the module's linear_qdq_gated applies (elsewhere it returns None; ours always applies):
/// fp4, `split2` on, n % 256 == 0.
DEEPINFER_API bool fits_module_gated(const Context& context, const PreparedWeight& w) noexcept;

// y = x . w^T. `group` names a group of a stacked weight. Rows of y may be strided; nothing outside
// m rows and n columns is written. m = 0 or n = 0 is success and touches nothing. Everything is
// checked by name before anything is written: Error(kInvalidArgument).

/// d [m, n] = a [m, k] . b^T of activations that are quantized already. f32 d gets the values
/// rounded to bf16 and widened, as the module does. fp4 weights: a is decoded, rounded to bf16 and
/// quantized once more (1x32, 224); that changes nothing when a was quantized so.
DEEPINFER_API void gemm(const Context& context, const QuantizedView& a, const PreparedWeight& b,
                        const MutableMatrixView& d,
                        std::optional<std::int64_t> group = std::nullopt);

/// The same with every bit of the f32 sums kept; d is f32.
DEEPINFER_API void gemm_f32(const Context& context, const QuantizedView& a, const PreparedWeight& b,
                            const MutableMatrixView& d,
                            std::optional<std::int64_t> group = std::nullopt);

/// y [m, n] = quantized(x) . w^T: bf16 or f32 x [m, k] is quantized on the way in, 1x32,
/// power-of-two scales, 224.
DEEPINFER_API void linear_qdq(const Context& context, const MatrixView& x, const PreparedWeight& w,
                              const MutableMatrixView& y,
                              std::optional<std::int64_t> group = std::nullopt);

/// The same, returning dense bf16 [m, n].
DEEPINFER_API std::vector<std::uint16_t> linear_qdq(
    const Context& context, const MatrixView& x, const PreparedWeight& w,
    std::optional<std::int64_t> group = std::nullopt);

/// linear_qdq() for bare bytes: any rows of a weight (row_offset says where in its block the first
/// one lies) and columns that start at a multiple of 32, say a rank's slice of a shared expert; see
/// slice(). The format is that of the view, whose scales are e8m0.
DEEPINFER_API void linear_qdq_raw(const Context& context, const MatrixView& x, const WeightView& w,
                                  const MutableMatrixView& y);

/// linear_qdq() with group `group` when *flag is exactly 1; otherwise y becomes zeros and no byte
/// of the weight is read. The flag is read when the call runs.
DEEPINFER_API void linear_qdq_gated(const Context& context, const MatrixView& x,
                                    const PreparedWeight& w, std::int64_t group,
                                    const std::int32_t* flag, const MutableMatrixView& y);

// Exact decoding.

/// out[i] = value of code i of `count` codes; e2m1 codes come in pairs, low nibble first.
DEEPINFER_API void decode_data(Element element, const void* codes, std::int64_t count, float* out);

/// out [rows, k] = the scale of every value.
DEEPINFER_API void sf_to_scales(const PackedScales& scales, std::int64_t k, float* out);

}  // namespace deepinfer
