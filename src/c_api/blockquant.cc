// The module's kernels by name for C.
#include "deepinfer/blockquant.h"

#include "c_api/boundary.h"
#include "c_api/handles.h"
#include "c_api/tensors.h"

namespace deepinfer::c_api {
namespace {

using Kernel = void(const Context&, const MatrixView&, const blockquant::ByteMatrix&,
                    const blockquant::ByteMatrix&, const MutableMatrixView&);

struct Matrices {
  const deepinfer_tensor* x;
  const deepinfer_tensor* weight;
  const deepinfer_tensor* scale;
  const deepinfer_tensor* y;
};

/// run(context, x, weight, scale, y) with the views of all.
template <class Run>
deepinfer_status with_views(const char* name, const deepinfer_context* context, const Matrices& in,
                            const Run& run) noexcept {
  return guarded([&] {
    const Refuse refuse(name);
    const Context& ours = context_of(refuse, context);
    const Tensors tensors(refuse);
    const MatrixView x = tensors.matrix("x", in.x, {DEEPINFER_BF16});
    const blockquant::ByteMatrix weight = tensors.bytes("weight", in.weight, {DEEPINFER_U8});
    const blockquant::ByteMatrix scale =
        tensors.bytes("scale", in.scale, {DEEPINFER_U8, DEEPINFER_F8_E8M0});
    run(tensors, ours, x, weight, scale, tensors.output("y", in.y));
  });
}

deepinfer_status call(const char* name, Kernel* kernel, const deepinfer_context* context,
                      const Matrices& in) noexcept {
  return with_views(name, context, in,
                    [&](const Tensors&, const auto&... views) { kernel(views...); });
}

}  // namespace
}  // namespace deepinfer::c_api

using namespace deepinfer;
using c_api::call;

#define DEEPINFER_BLOCKQUANT(name)                                                                 \
  deepinfer_status deepinfer_blockquant_##name(                                                    \
      const deepinfer_context* context, const deepinfer_tensor* x, const deepinfer_tensor* weight, \
      const deepinfer_tensor* scale, const deepinfer_tensor* y) noexcept {                         \
    return call(#name, blockquant::name, context, {x, weight, scale, y});                          \
  }
DEEPINFER_BLOCKQUANT(fp8_linear)
DEEPINFER_BLOCKQUANT(fp8_linear_2core)
DEEPINFER_BLOCKQUANT(fp8_linear_raw)
DEEPINFER_BLOCKQUANT(fp8_linear_raw_2core)
DEEPINFER_BLOCKQUANT(fp4_linear)
DEEPINFER_BLOCKQUANT(fp4_linear_2core)
#undef DEEPINFER_BLOCKQUANT

deepinfer_status deepinfer_blockquant_fp4_linear_2core_gated(const deepinfer_context* context,
                                                             const deepinfer_tensor* x,
                                                             const deepinfer_tensor* weight,
                                                             const deepinfer_tensor* scale,
                                                             const deepinfer_tensor* flag,
                                                             const deepinfer_tensor* y) noexcept {
  return c_api::with_views("fp4_linear_2core_gated", context, {x, weight, scale, y},
                           [&](const c_api::Tensors& tensors, const Context& ours,
                               const MatrixView& rows, const blockquant::ByteMatrix& codes,
                               const blockquant::ByteMatrix& scales, const MutableMatrixView& out) {
                             blockquant::fp4_linear_2core_gated(ours, rows, codes, scales,
                                                                tensors.flag(flag), out);
                           });
}
