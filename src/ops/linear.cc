// The public linear(): checks everything by name, then calls gemm().
#include "deepinfer/linear.h"

#include <fmt/format.h>

#include "deepinfer/error.h"
#include "ops/gemm.h"

namespace deepinfer {
namespace {

/// The bytes an argument covers; empty when it has none.
struct Extent {
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
};

[[noreturn]] void refuse(const char* name, const std::string& what) {
  throw Error(ErrorCode::kInvalidArgument, fmt::format("linear: {} {}", name, what));
}

bool overlap(const Extent& a, const Extent& b) { return a.begin < b.end && b.begin < a.end; }

Extent extent_of(const char* name, const void* data, std::int64_t rows, std::int64_t columns,
                 std::int64_t stride, std::int64_t element_bytes) {
  if (data == nullptr) refuse(name, "is null");
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  if (begin % static_cast<std::uintptr_t>(element_bytes) != 0) {
    refuse(name, "is not aligned to its elements");
  }
  std::int64_t bytes = 0;
  if (__builtin_mul_overflow(rows - 1, stride, &bytes) ||
      __builtin_add_overflow(bytes, columns, &bytes) ||
      __builtin_mul_overflow(bytes, element_bytes, &bytes)) {
    refuse(name, fmt::format("covers more bytes than there are addresses ({} rows, stride {})",
                             rows, stride));
  }
  return {begin, begin + static_cast<std::uintptr_t>(bytes)};
}

template <class View>
void check_shape(const char* name, const View& v, std::int64_t rows, std::int64_t columns) {
  if (v.rows != rows || v.columns != columns) {
    refuse(name, fmt::format("is [{}, {}], expected [{}, {}]", v.rows, v.columns, rows, columns));
  }
  if (v.stride != 0 && v.stride < v.columns) {
    refuse(name,
           fmt::format("has rows {} elements apart, expected at least {}", v.stride, v.columns));
  }
}

template <class View>
Extent extent_of(const char* name, const View& v) {
  if (v.rows == 0 || v.columns == 0) return {};
  return extent_of(name, v.data, v.rows, v.columns, v.stride != 0 ? v.stride : v.columns,
                   v.type == FloatType::kBf16 ? 2 : 4);
}

}  // namespace

void linear(const Context& context, const MatrixView& x, const Weight& w,
            const MutableMatrixView& y, Activations activations, const float* bias) {
  const std::int64_t m = x.rows;
  if (m < 0) refuse("x", fmt::format("has {} rows", m));
  check_shape("x", x, m, w.k());
  check_shape("y", y, m, w.n());
  if (m == 0 || w.n() == 0) return;
  const Extent out = extent_of("y", y);
  if (overlap(extent_of("x", x), out)) refuse("x", "and y overlap");
  if (bias != nullptr && overlap(extent_of("bias", bias, 1, w.n(), w.n(), 4), out)) {
    refuse("bias", "and y overlap");
  }
  thread_local ops::GemmWorkspace workspace;  // so that only the first call allocates
  const ops::GemmTask task = {&w, y, bias};
  ops::gemm(context, workspace, x, activations, std::span(&task, 1));
}

}  // namespace deepinfer
