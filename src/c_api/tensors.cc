#include "c_api/tensors.h"

#include <fmt/format.h>

#include <algorithm>

#include "c_api/structs.h"

namespace deepinfer::c_api {
namespace {

std::string name_of(deepinfer_dtype dtype) {
  switch (dtype) {
    case DEEPINFER_BF16:
      return "BF16";
    case DEEPINFER_F32:
      return "F32";
    case DEEPINFER_F8_E4M3FN:
      return "F8_E4M3FN";
    case DEEPINFER_F4_E2M1X2:
      return "F4_E2M1X2";
    case DEEPINFER_F8_E8M0:
      return "F8_E8M0";
    case DEEPINFER_U8:
      return "U8";
    case DEEPINFER_I16:
      return "I16";
    case DEEPINFER_I32:
      return "I32";
    default:
      return fmt::format("number {}", dtype);
  }
}

std::int64_t bytes_of(deepinfer_dtype dtype) {
  switch (dtype) {
    case DEEPINFER_F32:
    case DEEPINFER_I32:
      return 4;
    case DEEPINFER_BF16:
    case DEEPINFER_I16:
      return 2;
    default:
      return 1;
  }
}

std::string shape_of(const Strided& t) {
  return fmt::format("[{}]", fmt::join(t.shape.begin(), t.shape.begin() + t.rank, ", "));
}

/// Writes out strides and looks for numbers that no tensor has.
void resolve(const Refuse& refuse, const char* name, Strided& t) {
  std::int64_t dense = 1;
  std::int64_t last = 0;  // the last element's offset
  bool overflow = false;
  for (int i = t.rank - 1; i >= 0; --i) {
    const auto at = static_cast<std::size_t>(i);
    if (t.shape[at] < 0 || t.stride[at] < 0) {
      refuse(name, fmt::format("has {} elements {} apart in dimension {}, neither may be negative",
                               t.shape[at], t.stride[at], i));
    }
    if (t.stride[at] == 0 || t.shape[at] <= 1) t.stride[at] = dense;
    std::int64_t span = 0;
    const std::int64_t count = std::max<std::int64_t>(t.shape[at], 1);
    overflow = overflow || __builtin_mul_overflow(count, t.stride[at], &dense) ||
               __builtin_mul_overflow(count - 1, t.stride[at], &span) ||
               __builtin_add_overflow(last, span, &last);
  }
  std::int64_t bytes = 0;
  // Twice: a byte of e2m1 is two values.
  if (overflow || __builtin_mul_overflow(last, 2 * bytes_of(t.dtype), &bytes)) {
    refuse(name, fmt::format("{} covers more bytes than there are addresses", shape_of(t)));
  }
}

constexpr std::initializer_list<deepinfer_dtype> kPackedScales = {DEEPINFER_U8, DEEPINFER_F8_E8M0,
                                                                  DEEPINFER_I16};

FloatType float_type(deepinfer_dtype dtype) {
  return dtype == DEEPINFER_BF16 ? FloatType::kBf16 : FloatType::kF32;
}

}  // namespace

std::int64_t Strided::elements() const noexcept {
  std::int64_t count = 1;
  for (int i = 0; i < rank; ++i) count *= shape[static_cast<std::size_t>(i)];
  return count;
}

Strided Tensors::tensor(const char* name, const deepinfer_tensor* in,
                        std::initializer_list<deepinfer_dtype> dtypes, int min_rank, int max_rank,
                        Inner inner) const {
  const auto read = read_struct(refuse_, name, in, deepinfer_tensor{});
  if (std::find(dtypes.begin(), dtypes.end(), read.dtype) == dtypes.end()) {
    std::string expected;
    for (const deepinfer_dtype dtype : dtypes) {
      expected += (expected.empty() ? "" : " or ") + name_of(dtype);
    }
    refuse_(name, fmt::format("has dtype {}, expected {}", name_of(read.dtype), expected));
  }
  if (read.rank < min_rank || read.rank > max_rank) {
    refuse_(name,
            min_rank == max_rank
                ? fmt::format("has rank {}, expected {}", read.rank, max_rank)
                : fmt::format("has rank {}, expected {} to {}", read.rank, min_rank, max_rank));
  }
  Strided out;
  out.data = read.data;
  out.dtype = read.dtype;
  out.rank = read.rank;
  std::copy_n(read.shape, out.rank, out.shape.begin());
  std::copy_n(read.stride, out.rank, out.stride.begin());
  resolve(refuse_, name, out);
  const std::int64_t step = out.stride[static_cast<std::size_t>(out.rank - 1)];
  if (inner == Inner::kUnit && step != 1) {
    refuse_(name, fmt::format("has the elements of a row {} apart, expected 1", step));
  }
  return out;
}

Strided Tensors::dense(const char* name, const deepinfer_tensor* in,
                       std::initializer_list<deepinfer_dtype> dtypes, int min_rank,
                       int max_rank) const {
  const Strided out = tensor(name, in, dtypes, min_rank, max_rank);
  std::int64_t step = 1;
  for (int i = out.rank - 1; i >= 0; --i) {
    const auto at = static_cast<std::size_t>(i);
    if (out.shape[at] > 1 && out.stride[at] != step) {
      refuse_(name, fmt::format("has stride {} in dimension {}, expected {}: it must be dense",
                                out.stride[at], i, step));
    }
    step *= std::max<std::int64_t>(out.shape[at], 1);
  }
  const auto address = reinterpret_cast<std::uintptr_t>(out.data);
  const bool packed = out.dtype == DEEPINFER_I16;  // bytes, at any address
  if (!packed && address % static_cast<std::uintptr_t>(bytes_of(out.dtype)) != 0) {
    refuse_(name, "is not aligned to its elements");
  }
  return out;
}

MatrixView Tensors::matrix(const char* name, const deepinfer_tensor* in,
                           std::initializer_list<deepinfer_dtype> dtypes) const {
  const Strided t = tensor(name, in, dtypes, 2, 2);
  return {t.data, float_type(t.dtype), t.shape[0], t.shape[1], t.stride[0]};
}

MutableMatrixView Tensors::output(const char* name, const deepinfer_tensor* in) const {
  const Strided t = tensor(name, in, {DEEPINFER_BF16, DEEPINFER_F32}, 2, 2);
  return {t.data, float_type(t.dtype), t.shape[0], t.shape[1], t.stride[0]};
}

QuantizedView Tensors::quantized(const deepinfer_tensor* a, const deepinfer_tensor* sfa,
                                 std::int64_t block_k) const {
  const Strided codes = tensor("a", a, {DEEPINFER_F8_E4M3FN}, 2, 2);
  const Strided scales =
      tensor("sfa", sfa, {DEEPINFER_U8, DEEPINFER_F8_E8M0, DEEPINFER_I16, DEEPINFER_F32}, 2, 2,
             Inner::kStrided);
  const bool pairs = scales.dtype == DEEPINFER_I16;
  if (pairs && scales.stride[1] != 1) {
    refuse_("sfa", fmt::format("has the pairs of a row {} apart, expected 1", scales.stride[1]));
  }
  const std::int64_t each = pairs ? 2 : 1;
  QuantizedView out;
  out.codes = codes.data;
  out.rows = codes.shape[0];
  out.columns = codes.shape[1];
  out.stride = codes.stride[0];
  out.scale_type = scales.dtype == DEEPINFER_F32 ? ScaleType::kF32 : ScaleType::kE8m0;
  out.scales = scales.data;
  out.scale_rows = scales.shape[0];
  out.scale_columns = each * scales.shape[1];
  out.scale_stride = each * scales.stride[0];
  out.scale_column_stride = scales.stride[1];
  out.block_k = block_k;
  return out;
}

blockquant::ByteMatrix Tensors::bytes(const char* name, const deepinfer_tensor* in,
                                      std::initializer_list<deepinfer_dtype> dtypes) const {
  const Strided t = tensor(name, in, dtypes, 2, 2);
  return {static_cast<const std::uint8_t*>(t.data), t.shape[0], t.shape[1], t.stride[0]};
}

const std::int32_t* Tensors::flag(const deepinfer_tensor* in) const {
  const Strided t = tensor("flag", in, {DEEPINFER_I32}, 2, 2);
  if (t.shape[0] != 1 || t.shape[1] != 1) {
    refuse_("flag", fmt::format("is {}, expected [1, 1]", shape_of(t)));
  }
  return static_cast<const std::int32_t*>(t.data);
}

PackedScales Tensors::packed_scales(const Strided& scales) {
  const auto row = static_cast<std::size_t>(scales.rank - 2);
  const DType dtype = scales.dtype == DEEPINFER_I16  ? DType::kI16
                      : scales.dtype == DEEPINFER_U8 ? DType::kU8
                                                     : DType::kF8E8m0;
  return {scales.data, dtype, scales.shape[row], scales.shape[row + 1]};
}

PackedWeightView Tensors::packed(const deepinfer_tensor* codes, const deepinfer_tensor* scales,
                                 bool* agree) const {
  const Strided w = dense("codes", codes, {DEEPINFER_F8_E4M3FN, DEEPINFER_F4_E2M1X2}, 2, 3);
  const Strided sf = dense("scales", scales, kPackedScales, 2, 3);
  const auto row = static_cast<std::size_t>(w.rank - 2);
  const bool fp4 = w.dtype == DEEPINFER_F4_E2M1X2;
  PackedWeightView out;
  out.element = fp4 ? Element::kE2m1 : Element::kE4m3fn;
  out.codes = w.data;
  if (w.rank == 3) out.groups = w.shape[0];
  out.n = w.shape[row];
  out.k = fp4 ? 2 * w.shape[row + 1] : w.shape[row + 1];
  out.scales = packed_scales(sf);
  *agree = w.rank == sf.rank && (w.rank == 2 || w.shape[0] == sf.shape[0]);
  return out;
}

PackedWeightView Tensors::packed(const deepinfer_tensor* codes,
                                 const deepinfer_tensor* scales) const {
  bool agree = false;
  const PackedWeightView out = packed(codes, scales, &agree);
  if (!agree) refuse_("scales", "have another rank or number of groups than codes");
  return out;
}

}  // namespace deepinfer::c_api
