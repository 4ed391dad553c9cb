#include "ops/arguments.h"

#include <fmt/format.h>

#include "deepinfer/error.h"

namespace deepinfer::ops {
namespace {

constexpr std::int64_t element_bytes(FloatType type) { return type == FloatType::kBf16 ? 2 : 4; }

bool overlap(const Extent& a, const Extent& b) { return a.begin < b.end && b.begin < a.end; }

template <class View>
void check_shape(const Arguments& arguments, const char* name, const View& v, std::int64_t rows,
                 std::int64_t columns) {
  if (v.rows < 0) arguments.refuse(name, fmt::format("has {} rows", v.rows));
  if (v.rows != rows || v.columns != columns) {
    arguments.refuse(
        name, fmt::format("is [{}, {}], expected [{}, {}]", v.rows, v.columns, rows, columns));
  }
  if (v.stride != 0 && v.stride < v.columns) {
    arguments.refuse(
        name, fmt::format("has rows {} elements apart, expected at least {}", v.stride, v.columns));
  }
}

}  // namespace

void Arguments::refuse(const std::string& name, const std::string& what) const {
  throw Error(ErrorCode::kInvalidArgument, fmt::format("{}: {} {}", call_, name, what));
}

Extent Arguments::extent(const char* name, const void* data, std::int64_t rows,
                         std::int64_t columns, std::int64_t stride, std::int64_t bytes_each,
                         std::int64_t alignment) const {
  if (rows == 0 || columns == 0) return {};
  if (data == nullptr) refuse(name, "is null");
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  if (begin % static_cast<std::uintptr_t>(alignment) != 0) {
    refuse(name, "is not aligned to its elements");
  }
  std::int64_t bytes = 0;
  if (__builtin_mul_overflow(rows - 1, stride, &bytes) ||
      __builtin_add_overflow(bytes, columns, &bytes) ||
      __builtin_mul_overflow(bytes, bytes_each, &bytes)) {
    refuse(name, fmt::format("covers more bytes than there are addresses ({} rows, stride {})",
                             rows, stride));
  }
  return {begin, begin + static_cast<std::uintptr_t>(bytes)};
}

Extent Arguments::input(const char* name, const MatrixView& x, std::int64_t k,
                        std::int64_t n) const {
  check_shape(*this, name, x, x.rows, k);
  if (n == 0) return {};
  const std::int64_t bytes = element_bytes(x.type);
  return extent(name, x.data, x.rows, x.columns, x.stride != 0 ? x.stride : x.columns, bytes,
                bytes);
}

Extent Arguments::input(const char* name, const QuantizedView& x, std::int64_t k,
                        std::int64_t n) const {
  check_shape(*this, name, x, x.rows, k);
  const std::string scales = std::string(name) + "'s scales";
  if (x.scale_type != ScaleType::kE8m0 && x.scale_type != ScaleType::kF32) {
    refuse(scales, "are neither e8m0 nor f32");
  }
  if (x.block_k != 32 && x.block_k != 128) {
    refuse(scales, fmt::format("are for blocks of {} columns, expected 32 or 128", x.block_k));
  }
  const std::int64_t columns = (k + x.block_k - 1) / x.block_k;
  if (x.scale_rows != x.rows || x.scale_columns < columns) {
    refuse(scales, fmt::format("are [{}, {}], expected [{}, {}]", x.scale_rows, x.scale_columns,
                               x.rows, columns));
  }
  if (x.scale_stride < 0 || x.scale_column_stride < 1) {
    refuse(scales, fmt::format("have strides {} and {}, expected positive ones", x.scale_stride,
                               x.scale_column_stride));
  }
  if (n == 0) return {};
  if (x.scales == nullptr && x.rows > 0 && k > 0) refuse(scales, "are null");
  static_cast<void>(scales_of(name, x));
  return extent(name, x.codes, x.rows, x.columns, x.stride != 0 ? x.stride : x.columns, 1, 1);
}

Extent Arguments::scales_of(const char* name, const QuantizedView& x) const {
  if (x.rows == 0 || x.columns == 0) return {};
  const std::int64_t columns = (x.columns + x.block_k - 1) / x.block_k;
  const std::int64_t stride = x.scale_stride != 0 ? x.scale_stride : x.scale_columns;
  std::int64_t last_row = 0;  // of the scale with the highest address
  std::int64_t last = 0;
  std::int64_t bytes = 0;
  if (__builtin_mul_overflow(x.rows - 1, stride, &last_row) ||
      __builtin_mul_overflow(columns - 1, x.scale_column_stride, &last) ||
      __builtin_add_overflow(last_row, last, &last) || __builtin_add_overflow(last, 1, &last) ||
      __builtin_mul_overflow(last, scale_bytes(x.scale_type), &bytes)) {
    refuse(std::string(name) + "'s scales",
           fmt::format("cover more bytes than there are addresses (strides {} and {})", stride,
                       x.scale_column_stride));
  }
  const auto begin = reinterpret_cast<std::uintptr_t>(x.scales);
  return {begin, begin + static_cast<std::uintptr_t>(bytes)};
}

Extent Arguments::vector(const char* name, const float* data, std::int64_t count) const {
  return extent(name, data, 1, count, count, sizeof(float), alignof(float));
}

Extent Arguments::output(const char* name, const MutableMatrixView& y, std::int64_t m,
                         std::int64_t n) const {
  check_shape(*this, name, y, m, n);
  const std::int64_t bytes = element_bytes(y.type);
  return extent(name, y.data, m, n, y.stride != 0 ? y.stride : n, bytes, bytes);
}

void Arguments::disjoint(const char* name, const Extent& in, const char* out_name,
                         const Extent& out) const {
  if (overlap(in, out)) refuse(name, fmt::format("and {} overlap", out_name));
}

void Arguments::disjoint(const WeightView& w, const char* out_name, const Extent& out) const {
  const auto range = [](const void* data, std::int64_t bytes) {
    const auto begin = reinterpret_cast<std::uintptr_t>(data);
    return Extent{begin, begin + static_cast<std::uintptr_t>(bytes)};
  };
  const std::int64_t codes = (w.n - 1) * w.row_bytes + code_row_bytes(w.element, w.k);
  disjoint("the weight's codes", range(w.codes, w.n == 0 ? 0 : codes), out_name, out);
  const std::int64_t scales = (w.scale_rows - 1) * w.scale_stride + w.scale_columns;
  disjoint("the weight's scales",
           range(w.scales, w.scale_rows == 0 ? 0 : scales * scale_bytes(w.scale_type)), out_name,
           out);
}

}  // namespace deepinfer::ops
