// The public linear(): checks everything by name, then calls gemm().
#include "deepinfer/linear.h"

#include "ops/arguments.h"
#include "ops/gemm.h"

namespace deepinfer {

void linear(const Context& context, const MatrixView& x, const Weight& w,
            const MutableMatrixView& y, Activations activations, const float* bias) {
  const ops::Arguments arguments("linear");
  const ops::Extent in = arguments.input("x", x, w.k(), w.n());
  const ops::Extent out = arguments.output("y", y, x.rows, w.n());
  if (x.rows == 0 || w.n() == 0) return;
  arguments.disjoint("x", in, "y", out);
  arguments.disjoint(w.view(), "y", out);
  if (bias != nullptr) {
    arguments.disjoint("bias", arguments.vector("bias", bias, w.n()), "y", out);
  }
  const ops::GemmTask task = {.w = &w, .y = y, .bias = bias};
  ops::gemm(context, ops::thread_workspace(), {.x = x, .activations = activations},
            std::span(&task, 1));
}

}  // namespace deepinfer
