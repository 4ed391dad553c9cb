// One x against one or several weights: arranges x once per kernel order, splits the rows of each
// weight over the threads, runs kernels, reduces lanes, adds bias, stores.
#pragma once

#include <span>
#include <vector>

#include "deepinfer/linear.h"
#include "kernels/kernel.h"
#include "runtime/memory.h"

namespace deepinfer::ops {

struct GemmTask {
  const Weight* w = nullptr;    // [n, k]
  MutableMatrixView y;          // [m, n]
  const float* bias = nullptr;  // [n] or null
};

/// Buffers of gemm(), reused from call to call.
class GemmWorkspace {
 public:
  std::int64_t bytes() const noexcept;

 private:
  friend void gemm(const Context&, GemmWorkspace&, const MatrixView&, Activations,
                   std::span<const GemmTask>);

  struct Arranged {
    const kernels::Arrangement* arrangement = nullptr;
    Activations activations = Activations::kAsIs;
    std::int64_t stride = 0;
    AlignedBuffer buffer;
  };
  struct PerThread {
    AlignedBuffer row;     // one quantized row of x
    AlignedBuffer acc;     // lanes of one kernel call
    AlignedBuffer values;  // reduced lanes
    AlignedBuffer scales;  // spread-out scales
  };

  std::vector<Arranged> arranged_;
  std::vector<PerThread> threads_;
};

/// All weights have the k of x; shapes have been checked. `activations` applies to code formats;
/// bf16 weights take x as it is.
void gemm(const Context& context, GemmWorkspace& workspace, const MatrixView& x,
          Activations activations, std::span<const GemmTask> tasks);

}  // namespace deepinfer::ops
