// One x against one or several weights: arranges x once per kernel order, splits the rows of each
// weight over the threads, runs kernels, reduces lanes, adds bias and c, stores.
#pragma once

#include <span>
#include <vector>

#include "deepinfer/linear.h"
#include "deepinfer/quantized.h"
#include "kernels/kernel.h"
#include "runtime/memory.h"

namespace deepinfer::ops {

/// The rows of x: numbers, or codes with scales.
struct GemmInput {
  MatrixView x = {};                             // unless `codes` is set
  Activations activations = Activations::kAsIs;  // of x, in front of code formats
  const QuantizedView* codes = nullptr;          // only for weights of code formats
  bool requantize = false;  // codes: as bf16, rounded once, and quantized again at 224

  /// Row i of the operand is row gather[i] of x; a negative one is no row, and no task covers it.
  std::span<const std::int32_t> gather = {};

  std::int64_t rows() const noexcept {
    if (gather.data() != nullptr) return static_cast<std::int64_t>(gather.size());
    return codes != nullptr ? codes->rows : x.rows;
  }
  std::int64_t columns() const noexcept { return codes != nullptr ? codes->columns : x.columns; }
};

/// How f32 results reach y.
enum class Store : std::uint8_t {
  kOnce,         ///< y = value in y's type
  kThroughBf16,  ///< y = bf16(value), widened where y is f32
};

struct GemmTask {
  const Weight* w = nullptr;      // [n, k]
  MutableMatrixView y;            // [m, n]
  std::int64_t first_row = 0;     // of x: the task takes rows [first_row, first_row + y.rows)
  std::int64_t first_column = 0;  // of y: the task computes [first_column, first_column +
  std::int64_t num_columns = 0;   // num_columns), all of them when 0
  const float* bias = nullptr;    // [n] or null
  MatrixView c = {};  // [m, n], added before the store; null data: none; may be y itself
  Store store = Store::kOnce;
};

/// Buffers of gemm(), reused from call to call.
class GemmWorkspace {
 public:
  std::int64_t bytes() const noexcept;

 private:
  friend class GemmCall;

  struct Arranged {
    const kernels::Arrangement* arrangement = nullptr;
    Activations activations = Activations::kAsIs;
    std::int64_t stride = 0;
    AlignedBuffer buffer;
  };
  struct Plan {  // one task with what was decided for it
    const GemmTask* task = nullptr;
    const kernels::Kernel* kernel = nullptr;
    const kernels::Kernel* foreign_kernel = nullptr;  // for rows with foreign scales
    std::size_t arranged = 0;
    std::size_t foreign_arranged = 0;
  };
  struct PerThread {
    AlignedBuffer row;     // one quantized row of x
    AlignedBuffer acc;     // lanes of one kernel call
    AlignedBuffer values;  // reduced lanes
    AlignedBuffer scales;  // spread-out scales, and their products with those of x
  };

  std::vector<Plan> plans_;
  std::vector<Arranged> arranged_;
  std::vector<PerThread> threads_;
  AlignedBuffer foreign_;  // per row of codes: whether one of its scales cannot lie inside x
};

/// All weights have the k of x; shapes have been checked. Tasks do not share outputs.
void gemm(const Context& context, GemmWorkspace& workspace, const GemmInput& input,
          std::span<const GemmTask> tasks);

/// The calling thread's workspace, for calls that have none of their own: only the first allocates.
GemmWorkspace& thread_workspace();

}  // namespace deepinfer::ops
