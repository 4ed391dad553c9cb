// GEMMs in the shape of DeepGEMM's API (its README, "Interfaces"): both operands are codes with
// scale factors, the output is the caller's, nothing is quantized again.
//
// D [m, n] = A [m, k] . B [n, k]^T (+ C). A is e4m3fn, B e4m3fn or pairs of e2m1. Scale factors are
// f32, [ceil(rows / gran_mn), ceil(k / gran_k)] with any strides, or int32 that hold the e8m0 bytes
// of four neighbouring k-blocks, the lowest in the lowest byte, [rows, ceil(k / (4 gran_k))].
// Recipes (gran_mn, gran_k) are (1, 32), (32, 32), (1, 128), (128, 128); A's gran_mn is 1, and so
// is that of int32. Scale factors of B are checked and copied at every call: prepare a Weight to do
// that once. Everything else is refused by name, Error(kInvalidArgument), before anything is
// written.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "deepinfer/export.h"
#include "deepinfer/linear.h"
#include "deepinfer/tensor.h"

namespace deepinfer::deep_gemm {

struct ScaleFactors {
  const void* data = nullptr;
  DType dtype = DType::kF32;       ///< kF32 or kI32
  std::int64_t row_stride = 0;     ///< elements from row to row
  std::int64_t column_stride = 1;  ///< elements from column to column; MN-major: row_stride 1
  std::int64_t group_stride = 0;   ///< elements from group to group
};

/// A matrix [rows, k], or a stack of them [groups, rows, k].
struct Operand {
  const void* data = nullptr;
  DType dtype = DType::kF8E4m3;  ///< kF8E4m3; of B also kI8: two e2m1 codes in a byte
  std::optional<std::int64_t> groups;
  std::int64_t rows = 0;
  std::int64_t k = 0;
  std::int64_t row_stride = 0;  ///< bytes from row to row; 0: dense. Groups follow each other.
  ScaleFactors sf;
};

struct Recipe {
  std::int64_t gran_mn = 1;
  std::int64_t gran_k = 128;
};

struct GemmOptions {
  /// Nothing: (1, 128).
  std::optional<Recipe> recipe_a = std::nullopt;
  /// Nothing: (128, 128) for f32, (1, 128) for int32 scale factors.
  std::optional<Recipe> recipe_b = std::nullopt;
  /// [m, n] of D's type, added in f32 before the store; may be D itself.
  std::optional<MatrixView> c = std::nullopt;
};

/// D = A . B^T (+ C); d is bf16 or f32. k = 0 gives C or zeros.
DEEPINFER_API void fp8_gemm_nt(const Context& context, const Operand& a, const Operand& b,
                               const MutableMatrixView& d, const GemmOptions& options = {});
/// The same entry; b may be fp4.
DEEPINFER_API void fp8_fp4_gemm_nt(const Context& context, const Operand& a, const Operand& b,
                                   const MutableMatrixView& d, const GemmOptions& options = {});

/// B is a stack; row r of A takes group grouped_layout[r], -1 is padding and becomes zeros. With
/// use_psum_layout, grouped_layout holds the end of each group's rows.
DEEPINFER_API void m_grouped_fp8_fp4_gemm_nt_contiguous(
    const Context& context, const Operand& a, const Operand& b, const MutableMatrixView& d,
    std::span<const std::int32_t> grouped_layout, const GemmOptions& options = {},
    bool use_psum_layout = false);

/// A [groups, max_m, k] and D [groups * max_m, n]: of group g the first masked_m[g] rows are
/// computed.
DEEPINFER_API void m_grouped_fp8_fp4_gemm_nt_masked(const Context& context, const Operand& a,
                                                    const Operand& b, const MutableMatrixView& d,
                                                    std::span<const std::int32_t> masked_m,
                                                    const GemmOptions& options = {});

}  // namespace deepinfer::deep_gemm
