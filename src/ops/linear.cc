// The public linear(): checks everything by name, then calls gemm().
#include "deepinfer/linear.h"

#include <fmt/format.h>

#include "deepinfer/error.h"
#include "ops/gemm.h"

namespace deepinfer {
namespace {

struct Extent {
  std::uintptr_t begin;
  std::uintptr_t end;
};

int size_of(FloatType type) { return type == FloatType::kBf16 ? 2 : 4; }

/// Checks a matrix and returns the bytes it covers.
template <class View>
Extent check(const View& v, const char* name, std::int64_t rows, std::int64_t columns) {
  const auto refuse = [&](const std::string& what) {
    throw Error(ErrorCode::kInvalidArgument, fmt::format("linear: {} {}", name, what));
  };
  if (v.rows != rows || v.columns != columns) {
    refuse(fmt::format("is [{}, {}], expected [{}, {}]", v.rows, v.columns, rows, columns));
  }
  const std::int64_t stride = v.stride != 0 ? v.stride : v.columns;
  if (stride < v.columns) {
    refuse(fmt::format("has rows {} elements apart, expected at least {}", stride, v.columns));
  }
  if (rows == 0 || columns == 0) return {0, 0};
  if (v.data == nullptr) refuse("is null");
  const auto begin = reinterpret_cast<std::uintptr_t>(v.data);
  if (begin % static_cast<std::uintptr_t>(size_of(v.type)) != 0) {
    refuse("is not aligned to its elements");
  }
  const auto elements = static_cast<std::uintptr_t>((rows - 1) * stride + columns);
  return {begin, begin + elements * static_cast<std::uintptr_t>(size_of(v.type))};
}

}  // namespace

void linear(const Context& context, const MatrixView& x, const Weight& w,
            const MutableMatrixView& y, Activations activations, const float* bias) {
  const std::int64_t m = x.rows;
  if (m < 0) throw Error(ErrorCode::kInvalidArgument, "linear: x has a negative number of rows");
  const Extent in = check(x, "x", m, w.k());
  const Extent out = check(y, "y", m, w.n());
  if (in.begin < out.end && out.begin < in.end) {
    throw Error(ErrorCode::kInvalidArgument, "linear: x and y overlap");
  }
  if (m == 0 || w.n() == 0) return;
  thread_local ops::GemmWorkspace workspace;  // so that only the first call allocates
  const ops::GemmTask task = {&w, y, bias};
  ops::gemm(context, workspace, x, activations, std::span(&task, 1));
}

}  // namespace deepinfer
