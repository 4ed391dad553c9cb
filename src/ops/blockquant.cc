// The module's kernels by name: bare bytes in, one gemm() each.
#include "deepinfer/blockquant.h"

#include <fmt/format.h>

#include "ops/call.h"

namespace deepinfer::blockquant {
namespace {

/// The weight of a kernel call; shapes are checked by name.
Weight weight_of(const ops::Arguments& arguments, Element element, const MatrixView& x,
                 const ByteMatrix& weight, const ByteMatrix& scale, bool halves) {
  const auto check = [&](const char* name, const ByteMatrix& m) {
    if (m.rows < 0 || m.columns < 0 || (m.stride != 0 && m.stride < m.columns)) {
      arguments.refuse(
          name, fmt::format("is [{}, {}] with rows {} bytes apart", m.rows, m.columns, m.stride));
    }
  };
  check("weight", weight);
  check("scale", scale);
  if (x.type != FloatType::kBf16) arguments.refuse("x", "is f32, expected bf16");
  if (halves && weight.rows % ops::kHalvesOf != 0) {
    arguments.refuse("weight", fmt::format("has {} rows, which do not make two halves of whole 128",
                                           weight.rows));
  }
  WeightView view;
  view.element = element;
  view.codes = weight.data;
  view.n = weight.rows;
  view.k = element == Element::kE2m1 ? 2 * weight.columns : weight.columns;
  view.row_bytes = weight.stride;
  view.scale_type = ScaleType::kE8m0;
  view.scales = scale.data;
  view.scale_rows = scale.rows;
  view.scale_columns = scale.columns;
  view.scale_stride = scale.stride;
  view.block_n = element == Element::kE2m1 ? 1 : 32;
  return Weight::prepare(view, "weight");
}

void run(const char* name, const Context& context, Element element, const MatrixView& x,
         const ByteMatrix& weight, const ByteMatrix& scale, const MutableMatrixView& y,
         Activations activations, bool halves) {
  const ops::Arguments arguments(name);
  if (y.type != FloatType::kBf16) arguments.refuse("y", "is f32, expected bf16");
  ops::multiply_rows(context, name, x, weight_of(arguments, element, x, weight, scale, halves), y,
                     activations, halves);
}

}  // namespace

void fp8_linear(const Context& context, const MatrixView& x, const ByteMatrix& weight,
                const ByteMatrix& scale, const MutableMatrixView& y) {
  run("fp8_linear", context, Element::kE4m3fn, x, weight, scale, y, Activations::kQuantize224,
      false);
}

void fp8_linear_2core(const Context& context, const MatrixView& x, const ByteMatrix& weight,
                      const ByteMatrix& scale, const MutableMatrixView& y) {
  run("fp8_linear_2core", context, Element::kE4m3fn, x, weight, scale, y, Activations::kQuantize224,
      true);
}

void fp8_linear_raw(const Context& context, const MatrixView& x, const ByteMatrix& weight,
                    const ByteMatrix& scale, const MutableMatrixView& y) {
  run("fp8_linear_raw", context, Element::kE4m3fn, x, weight, scale, y, Activations::kAsIs, false);
}

void fp8_linear_raw_2core(const Context& context, const MatrixView& x, const ByteMatrix& weight,
                          const ByteMatrix& scale, const MutableMatrixView& y) {
  run("fp8_linear_raw_2core", context, Element::kE4m3fn, x, weight, scale, y, Activations::kAsIs,
      true);
}

void fp4_linear(const Context& context, const MatrixView& x, const ByteMatrix& weight,
                const ByteMatrix& scale, const MutableMatrixView& y) {
  run("fp4_linear", context, Element::kE2m1, x, weight, scale, y, Activations::kQuantize224, false);
}

void fp4_linear_2core(const Context& context, const MatrixView& x, const ByteMatrix& weight,
                      const ByteMatrix& scale, const MutableMatrixView& y) {
  run("fp4_linear_2core", context, Element::kE2m1, x, weight, scale, y, Activations::kQuantize224,
      true);
}

void fp4_linear_2core_gated(const Context& context, const MatrixView& x, const ByteMatrix& weight,
                            const ByteMatrix& scale, const std::int32_t* flag,
                            const MutableMatrixView& y) {
  const char* name = "fp4_linear_2core_gated";
  const ops::Arguments arguments(name);
  if (y.type != FloatType::kBf16) arguments.refuse("y", "is f32, expected bf16");
  const Weight w = weight_of(arguments, Element::kE2m1, x, weight, scale, true);
  ops::multiply_gated(context, name, x, w, flag, y, true);
}

}  // namespace deepinfer::blockquant
