// The kernels that the module loads, under their names: y = x . w^T with bf16 x [m, k] and y [m,
// n].
//
// weight: e4m3fn bytes [n, k] with scale [ceil(n / 32), ceil(k / 32)], or e2m1 pairs [n, k / 2]
// with scale [n, k / 32]; scales are e8m0 bytes. Any m, n and k (even for e2m1). The functions
// named _2core divide the columns in two halves first and need n % 256 == 0; their bits are those
// of the others. Throws Error(kInvalidArgument) naming the argument before anything is written.
#pragma once

#include <cstdint>

#include "deepinfer/export.h"
#include "deepinfer/linear.h"

namespace deepinfer::blockquant {

/// Bytes [rows, columns] in row-major order.
struct ByteMatrix {
  const std::uint8_t* data = nullptr;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t stride = 0;  ///< bytes from row to row; 0: dense
};

/// x is quantized on the way in: 1x32, power-of-two scales, 224.
DEEPINFER_API void fp8_linear(const Context& context, const MatrixView& x, const ByteMatrix& weight,
                              const ByteMatrix& scale, const MutableMatrixView& y);
DEEPINFER_API void fp8_linear_2core(const Context& context, const MatrixView& x,
                                    const ByteMatrix& weight, const ByteMatrix& scale,
                                    const MutableMatrixView& y);

/// x is used as it is.
DEEPINFER_API void fp8_linear_raw(const Context& context, const MatrixView& x,
                                  const ByteMatrix& weight, const ByteMatrix& scale,
                                  const MutableMatrixView& y);
DEEPINFER_API void fp8_linear_raw_2core(const Context& context, const MatrixView& x,
                                        const ByteMatrix& weight, const ByteMatrix& scale,
                                        const MutableMatrixView& y);

/// x is quantized on the way in; values that were quantized at 224 already do not change.
DEEPINFER_API void fp4_linear(const Context& context, const MatrixView& x, const ByteMatrix& weight,
                              const ByteMatrix& scale, const MutableMatrixView& y);
DEEPINFER_API void fp4_linear_2core(const Context& context, const MatrixView& x,
                                    const ByteMatrix& weight, const ByteMatrix& scale,
                                    const MutableMatrixView& y);

/// Runs when *flag is exactly 1; otherwise y becomes zeros and no byte of the weight is read.
DEEPINFER_API void fp4_linear_2core_gated(const Context& context, const MatrixView& x,
                                          const ByteMatrix& weight, const ByteMatrix& scale,
                                          const std::int32_t* flag, const MutableMatrixView& y);

}  // namespace deepinfer::blockquant
