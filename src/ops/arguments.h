// Checks of one call's arguments: by name, all before anything is written.
#pragma once

#include <cstdint>
#include <string>

#include "deepinfer/linear.h"
#include "deepinfer/quantized.h"

namespace deepinfer::ops {

/// The bytes that an argument covers; empty when it has none.
struct Extent {
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
};

class Arguments {
 public:
  /// `call` begins every message: "linear: x is null".
  explicit Arguments(const char* call) : call_(call) {}

  [[noreturn]] void refuse(const std::string& name, const std::string& what) const;

  /// x [m, k] of y [m, n]: shape, stride, alignment, pointer; with n = 0 nothing is read, and
  /// pointers may be null. Throws Error(kInvalidArgument).
  Extent input(const char* name, const MatrixView& x, std::int64_t k, std::int64_t n) const;
  /// Codes and scales; the extent is that of the codes.
  Extent input(const char* name, const QuantizedView& x, std::int64_t k, std::int64_t n) const;
  /// The scales of a view that input() has passed.
  Extent scales_of(const char* name, const QuantizedView& x) const;
  Extent vector(const char* name, const float* data, std::int64_t count) const;
  Extent output(const char* name, const MutableMatrixView& y, std::int64_t m, std::int64_t n) const;

  /// `in` and the output must not overlap.
  void disjoint(const char* name, const Extent& in, const char* out_name, const Extent& out) const;
  /// Neither codes nor scales of `w` may lie in the output.
  void disjoint(const WeightView& w, const char* out_name, const Extent& out) const;

 private:
  Extent extent(const char* name, const void* data, std::int64_t rows, std::int64_t columns,
                std::int64_t stride, std::int64_t element_bytes, std::int64_t alignment) const;

  const char* call_;
};

}  // namespace deepinfer::ops
