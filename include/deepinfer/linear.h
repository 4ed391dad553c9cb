// y = x . w^T with published weights: the operation this library exists for.
#pragma once

#include <cstdint>

#include "deepinfer/export.h"
#include "deepinfer/runtime.h"
#include "deepinfer/weight.h"

namespace deepinfer {

/// Types of x and y.
enum class FloatType : std::uint8_t { kBf16, kF32 };

/// Rows of x: [m, k].
struct MatrixView {
  const void* data = nullptr;
  FloatType type = FloatType::kBf16;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t stride = 0;  ///< elements from row to row; 0: dense
};

/// Rows of y: [m, n], written by the callee.
struct MutableMatrixView {
  void* data = nullptr;
  FloatType type = FloatType::kBf16;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t stride = 0;  ///< elements from row to row; 0: dense
};

/// What happens to x in front of a GEMM. Only code formats quantize: bf16 weights always take x as
/// it lies (f32 x is then rounded to bf16).
enum class Activations : std::uint8_t {
  kAsIs,         ///< bf16 x is used as it is, f32 x is rounded to bf16
  kQuantize224,  ///< 1x32 blocks, power-of-two scale, largest code value 224
  kQuantize448,  ///< the same with 448
};

/// y = x . w^T (+ bias). x [m, k], w [n, k], y [m, n], bias [n] or null.
///
/// Bits do not depend on threads, instruction set, m, or the position of a row. When x is
/// quantized, a block with NaN, infinity or a magnitude above limit * 2^119 makes its whole row of
/// y NaN. m = 0 or n = 0 is success and touches nothing; pointers may then be null. Throws
/// Error(kInvalidArgument) naming the argument before anything is written; y must overlap neither x
/// nor bias, and all three are aligned to their elements.
DEEPINFER_API void linear(const Context& context, const MatrixView& x, const Weight& w,
                          const MutableMatrixView& y,
                          Activations activations = Activations::kQuantize224,
                          const float* bias = nullptr);

}  // namespace deepinfer
