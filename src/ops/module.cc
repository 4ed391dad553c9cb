// The module's functions: each checks its arguments by name, then is one gemm().
#include "deepinfer/module.h"

#include <fmt/format.h>

#include "deepinfer/error.h"
#include "formats/e2m1.h"
#include "formats/e4m3fn.h"
#include "formats/e8m0.h"
#include "ops/call.h"

namespace deepinfer {

bool supported(const Context& context, const QuantizedView& a, const PreparedWeight* b,
               std::int64_t k, std::int64_t n) noexcept {
  if (!has_kernel(context, b) || b->element() == Element::kBf16 || b->k() != k || b->n() != n) {
    return false;
  }
  try {
    static_cast<void>(ops::Arguments("supported").input("a", a, k, n));
  } catch (const std::exception&) {  // a question is not an error
    return false;
  }
  return true;
}

bool fits_module_gate(std::int64_t k, std::int64_t n) noexcept {
  return k % 128 == 0 && n % 32 == 0;
}

bool has_kernel(const Context& context, const PreparedWeight* w) noexcept {
  return context.gemm_enabled() && w != nullptr;
}

bool splits_in_two(const Context& context, std::int64_t n) noexcept {
  return context.split2() && n % ops::kHalvesOf == 0;
}

bool fits_module_gated(const Context& context, const PreparedWeight& w) noexcept {
  return w.element() == Element::kE2m1 && splits_in_two(context, w.n());
}

void gemm(const Context& context, const QuantizedView& a, const PreparedWeight& b,
          const MutableMatrixView& d, std::optional<std::int64_t> group) {
  ops::multiply_codes(context, "gemm", a, b, d, group, ops::Store::kThroughBf16,
                      splits_in_two(context, b.n()));
}

void gemm_f32(const Context& context, const QuantizedView& a, const PreparedWeight& b,
              const MutableMatrixView& d, std::optional<std::int64_t> group) {
  if (d.type != FloatType::kF32) ops::Arguments("gemm_f32").refuse("d", "is bf16, expected f32");
  ops::multiply_codes(context, "gemm_f32", a, b, d, group, ops::Store::kOnce,
                      splits_in_two(context, b.n()));
}

void linear_qdq(const Context& context, const MatrixView& x, const PreparedWeight& w,
                const MutableMatrixView& y, std::optional<std::int64_t> group) {
  const Weight& weight = w.at(group);
  ops::multiply_rows(context, "linear_qdq", x, weight, y, Activations::kQuantize224,
                     splits_in_two(context, weight.n()));
}

std::vector<std::uint16_t> linear_qdq(const Context& context, const MatrixView& x,
                                      const PreparedWeight& w, std::optional<std::int64_t> group) {
  const ops::Arguments arguments("linear_qdq");
  static_cast<void>(arguments.input("x", x, w.k(), w.n()));
  std::int64_t size = 0;
  if (__builtin_mul_overflow(x.rows, w.n(), &size)) {
    arguments.refuse("x", fmt::format("has {} rows: y would not fit", x.rows));
  }
  std::vector<std::uint16_t> y(static_cast<std::size_t>(size));
  linear_qdq(context, x, w, {y.data(), FloatType::kBf16, x.rows, w.n(), 0}, group);
  return y;
}

void linear_qdq_raw(const Context& context, const MatrixView& x, const WeightView& w,
                    const MutableMatrixView& y) {
  if (w.scale_type != ScaleType::kE8m0) {
    ops::Arguments("linear_qdq_raw").refuse("w", "has scales that are not e8m0 bytes");
  }
  ops::multiply_rows(context, "linear_qdq_raw", x, Weight::prepare(w, "w"), y,
                     Activations::kQuantize224, splits_in_two(context, w.n));
}

void linear_qdq_gated(const Context& context, const MatrixView& x, const PreparedWeight& w,
                      std::int64_t group, const std::int32_t* flag, const MutableMatrixView& y) {
  const Weight& weight = w.at(group);
  ops::multiply_gated(context, "linear_qdq_gated", x, weight, flag, y,
                      splits_in_two(context, weight.n()));
}

void decode_data(Element element, const void* codes, std::int64_t count, float* out) {
  const auto* bytes = static_cast<const std::uint8_t*>(codes);
  const ops::Arguments arguments("decode_data");
  if (count < 0) arguments.refuse("count", fmt::format("is {}", count));
  if (count > 0 && (codes == nullptr || out == nullptr)) {
    arguments.refuse(codes == nullptr ? "codes" : "out", "is null");
  }
  if (element == Element::kBf16) arguments.refuse("element", "is bf16, expected e4m3fn or e2m1");
  for (std::int64_t i = 0; i < count; ++i) {
    const bool fp8 = element == Element::kE4m3fn;
    out[i] = fp8 ? formats::decode_e4m3fn(bytes[i])
                 : formats::decode_e2m1((bytes[i / 2] >> (4 * (i % 2))) & 15U);
  }
}

void sf_to_scales(const PackedScales& scales, std::int64_t k, float* out) {
  const ops::Arguments arguments("sf_to_scales");
  const std::int64_t width = scales.dtype == DType::kI16 ? 2 * scales.columns : scales.columns;
  if (scales.dtype != DType::kI16 && scales.dtype != DType::kU8 && scales.dtype != DType::kF8E8m0) {
    arguments.refuse("scales",
                     fmt::format("are {}, expected I16, U8 or F8_E8M0", dtype_name(scales.dtype)));
  }
  std::int64_t count = 0;
  if (k < 0 || scales.rows < 0 || width < k / 32 + (k % 32 != 0 ? 1 : 0) ||
      __builtin_mul_overflow(scales.rows, k, &count)) {
    arguments.refuse("scales",
                     fmt::format("are [{}, {}] bytes, not fit for k = {}", scales.rows, width, k));
  }
  if (count > 0 && (scales.data == nullptr || out == nullptr)) {
    arguments.refuse(scales.data == nullptr ? "scales" : "out", "is null");
  }
  const auto* bytes = static_cast<const std::uint8_t*>(scales.data);
  for (std::int64_t r = 0; r < scales.rows; ++r) {
    for (std::int64_t i = 0; i < k; ++i) {
      out[r * k + i] = formats::decode_e8m0(bytes[r * width + i / 32]);
    }
  }
}

}  // namespace deepinfer
