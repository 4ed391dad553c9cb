// The module's functions for C: convert, call, catch.
#include "deepinfer/module.h"

#include <fmt/format.h>

#include <array>
#include <string_view>

#include "c_api/boundary.h"
#include "c_api/handles.h"
#include "c_api/tensors.h"

namespace deepinfer::c_api {
namespace {

struct NamedFormat {
  std::string_view name;
  Element element;
  std::int64_t block_n;
  std::int64_t block_k;
};

constexpr std::array<NamedFormat, 4> kFormats = {{
    {"fp8-32x32", Element::kE4m3fn, 32, 32},
    {"fp8-128x128", Element::kE4m3fn, 128, 128},
    {"mxfp8", Element::kE4m3fn, 1, 32},
    {"mxfp4", Element::kE2m1, 1, 32},
}};

const NamedFormat& format_of(const Refuse& refuse, const char* name) {
  const std::string_view wanted = &refuse.non_null("format", name);
  for (const NamedFormat& format : kFormats) {
    if (format.name == wanted) return format;
  }
  std::string known;
  for (const NamedFormat& format : kFormats) {
    known += (known.empty() ? "" : ", ") + std::string(format.name);
  }
  refuse("format", fmt::format("is '{}', expected one of {}", wanted, known));
}

/// The view of bare bytes.
WeightView raw_view(const Refuse& refuse, const deepinfer_tensor* weight,
                    const deepinfer_tensor* scale, const NamedFormat& format) {
  const Tensors tensors(refuse);
  const blockquant::ByteMatrix codes = tensors.bytes("weight", weight, {DEEPINFER_U8});
  const blockquant::ByteMatrix grid =
      tensors.bytes("scale", scale, {DEEPINFER_U8, DEEPINFER_F8_E8M0});
  WeightView out;
  out.element = format.element;
  out.codes = codes.data;
  out.n = codes.rows;
  out.k = format.element == Element::kE2m1 ? 2 * codes.columns : codes.columns;
  out.row_bytes = codes.stride;
  out.scale_type = ScaleType::kE8m0;
  out.scales = grid.data;
  out.scale_rows = grid.rows;
  out.scale_columns = grid.columns;
  out.scale_stride = grid.stride;
  out.block_n = format.block_n;
  out.block_k = format.block_k;
  return out;
}

using Gemm = void(const Context&, const QuantizedView&, const PreparedWeight&,
                  const MutableMatrixView&, std::optional<std::int64_t>);

/// Both functions of quantized activations.
void multiply(const Refuse& refuse, Gemm* gemm, const deepinfer_context* context,
              const deepinfer_tensor* a, const deepinfer_tensor* sfa, std::int64_t block_k,
              const deepinfer_weight* b, std::int64_t group, const deepinfer_tensor* d) {
  const Context& ours = context_of(refuse, context);
  const Tensors tensors(refuse);
  const QuantizedView codes = tensors.quantized(a, sfa, block_k);
  gemm(ours, codes, weight_of(refuse, "b", b), tensors.output("d", d), group_of(group));
}

/// A matrix that is dense f32, to be filled.
float* decoded(const Refuse& refuse, const Strided& out, int rank,
               const std::array<std::int64_t, 4>& shape) {
  if (out.rank != rank || out.shape != shape) {
    refuse("out", fmt::format("is [{}], expected [{}]",
                              fmt::join(out.shape.begin(), out.shape.begin() + out.rank, ", "),
                              fmt::join(shape.begin(), shape.begin() + rank, ", ")));
  }
  return static_cast<float*>(out.data);
}

}  // namespace
}  // namespace deepinfer::c_api

using namespace deepinfer;
using c_api::guarded;
using c_api::Refuse;
using c_api::Tensors;

deepinfer_status deepinfer_supported(const deepinfer_context* context, const deepinfer_tensor* a,
                                     const deepinfer_tensor* sfa, int64_t block_k,
                                     const deepinfer_weight* b, int64_t k, int64_t n,
                                     int32_t* out) noexcept {
  return guarded([&] {
    const Refuse refuse("supported");
    const Context& ours = c_api::context_of(refuse, context);
    int32_t& answer = refuse.non_null("out", out);
    answer = 0;
    try {
      const QuantizedView codes = Tensors(refuse).quantized(a, sfa, block_k);
      answer = supported(ours, codes, c_api::unwrap(b), k, n) ? 1 : 0;
    } catch (const Error&) {  // NOLINT(bugprone-empty-catch): misfit tensors are not supported
    }
  });
}

deepinfer_status deepinfer_has_kernel(const deepinfer_context* context, const deepinfer_weight* w,
                                      int32_t* out) noexcept {
  return guarded([&] {
    const Refuse refuse("has_kernel");
    const Context& ours = c_api::context_of(refuse, context);
    refuse.non_null("out", out) = has_kernel(ours, c_api::unwrap(w)) ? 1 : 0;
  });
}

deepinfer_status deepinfer_splits_in_two(const deepinfer_context* context, int64_t n,
                                         int32_t* out) noexcept {
  return guarded([&] {
    const Refuse refuse("splits_in_two");
    const Context& ours = c_api::context_of(refuse, context);
    refuse.non_null("out", out) = splits_in_two(ours, n) ? 1 : 0;
  });
}

int32_t deepinfer_fits_module_gate(int64_t k, int64_t n) noexcept {
  return fits_module_gate(k, n) ? 1 : 0;
}

deepinfer_status deepinfer_fits_module_gated(const deepinfer_context* context,
                                             const deepinfer_weight* w, int32_t* out) noexcept {
  return guarded([&] {
    const Refuse refuse("fits_module_gated");
    const Context& ours = c_api::context_of(refuse, context);
    const PreparedWeight& weight = c_api::weight_of(refuse, "w", w);
    refuse.non_null("out", out) = fits_module_gated(ours, weight) ? 1 : 0;
  });
}

deepinfer_status deepinfer_gemm(const deepinfer_context* context, const deepinfer_tensor* a,
                                const deepinfer_tensor* sfa, int64_t block_k,
                                const deepinfer_weight* b, int64_t group,
                                const deepinfer_tensor* d) noexcept {
  return guarded(
      [&] { c_api::multiply(Refuse("gemm"), gemm, context, a, sfa, block_k, b, group, d); });
}

deepinfer_status deepinfer_gemm_f32(const deepinfer_context* context, const deepinfer_tensor* a,
                                    const deepinfer_tensor* sfa, int64_t block_k,
                                    const deepinfer_weight* b, int64_t group,
                                    const deepinfer_tensor* d) noexcept {
  return guarded([&] {
    c_api::multiply(Refuse("gemm_f32"), gemm_f32, context, a, sfa, block_k, b, group, d);
  });
}

deepinfer_status deepinfer_linear_qdq(const deepinfer_context* context, const deepinfer_tensor* x,
                                      const deepinfer_weight* w, int64_t group,
                                      const deepinfer_tensor* y) noexcept {
  return guarded([&] {
    const Refuse refuse("linear_qdq");
    const Context& ours = c_api::context_of(refuse, context);
    const Tensors tensors(refuse);
    linear_qdq(ours, tensors.matrix("x", x), c_api::weight_of(refuse, "w", w),
               tensors.output("y", y), c_api::group_of(group));
  });
}

deepinfer_status deepinfer_linear_raw(const deepinfer_context* context, const deepinfer_tensor* x,
                                      const deepinfer_weight* w, int64_t group,
                                      const deepinfer_tensor* y) noexcept {
  return guarded([&] {
    const Refuse refuse("linear_raw");
    const Context& ours = c_api::context_of(refuse, context);
    const Tensors tensors(refuse);
    const MatrixView rows = tensors.matrix("x", x, {DEEPINFER_BF16});
    const Weight& weight = c_api::weight_of(refuse, "w", w).at(c_api::group_of(group));
    linear(ours, rows, weight, tensors.output("y", y), Activations::kAsIs);
  });
}

deepinfer_status deepinfer_linear_qdq_raw(const deepinfer_context* context,
                                          const deepinfer_tensor* x, const deepinfer_tensor* weight,
                                          const deepinfer_tensor* scale, const char* format,
                                          int64_t row_offset, int64_t column_offset,
                                          const deepinfer_tensor* y) noexcept {
  return guarded([&] {
    const Refuse refuse("linear_qdq_raw");
    const Context& ours = c_api::context_of(refuse, context);
    const Tensors tensors(refuse);
    const MatrixView rows = tensors.matrix("x", x);
    WeightView view = c_api::raw_view(refuse, weight, scale, c_api::format_of(refuse, format));
    view.row_offset = row_offset;
    view.column_offset = column_offset;
    linear_qdq_raw(ours, rows, view, tensors.output("y", y));
  });
}

deepinfer_status deepinfer_linear_qdq_gated(const deepinfer_context* context,
                                            const deepinfer_tensor* x, const deepinfer_weight* w,
                                            int64_t group, const deepinfer_tensor* flag,
                                            const deepinfer_tensor* y) noexcept {
  return guarded([&] {
    const Refuse refuse("linear_qdq_gated");
    const Context& ours = c_api::context_of(refuse, context);
    const Tensors tensors(refuse);
    if (group == DEEPINFER_NO_GROUP) refuse("group", "is missing");
    linear_qdq_gated(ours, tensors.matrix("x", x), c_api::weight_of(refuse, "w", w), group,
                     tensors.flag(flag), tensors.output("y", y));
  });
}

deepinfer_status deepinfer_decode_data(const deepinfer_tensor* codes,
                                       const deepinfer_tensor* out) noexcept {
  return guarded([&] {
    const Refuse refuse("decode_data");
    const Tensors tensors(refuse);
    const c_api::Strided in =
        tensors.dense("codes", codes, {DEEPINFER_F8_E4M3FN, DEEPINFER_F4_E2M1X2}, 1, 4);
    const bool fp4 = in.dtype == DEEPINFER_F4_E2M1X2;
    const c_api::Strided values = tensors.dense("out", out, {DEEPINFER_F32}, 1, 4);
    auto shape = in.shape;
    if (fp4) shape[static_cast<std::size_t>(in.rank - 1)] *= 2;
    float* to = c_api::decoded(refuse, values, in.rank, shape);
    decode_data(fp4 ? Element::kE2m1 : Element::kE4m3fn, in.data, values.elements(), to);
  });
}

deepinfer_status deepinfer_sf_to_scales(const deepinfer_tensor* scales, int64_t k,
                                        const deepinfer_tensor* out) noexcept {
  return guarded([&] {
    const Refuse refuse("sf_to_scales");
    const Tensors tensors(refuse);
    const c_api::Strided in =
        tensors.dense("scales", scales, {DEEPINFER_U8, DEEPINFER_F8_E8M0, DEEPINFER_I16}, 2, 2);
    const c_api::Strided values = tensors.dense("out", out, {DEEPINFER_F32}, 2, 2);
    float* to = c_api::decoded(refuse, values, 2, {in.shape[0], k});
    sf_to_scales(Tensors::packed_scales(in), k, to);
  });
}
