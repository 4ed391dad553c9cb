// Type-erased views of tensors: a data type, a shape and bytes that somebody else owns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "deepinfer/export.h"

namespace deepinfer {

/// The data types of the safetensors format, in its own rank order.
enum class DType : std::uint8_t {
  kBool,
  kF4,
  kF6E2m3,
  kF6E3m2,
  kU8,
  kI8,
  kF8E5m2,
  kF8E4m3,
  kF8E8m0,
  kF8E4m3Fnuz,
  kF8E5m2Fnuz,
  kI16,
  kU16,
  kF16,
  kBf16,
  kI32,
  kU32,
  kF32,
  kC64,
  kF64,
  kI64,
  kU64,
};

/// The name used in safetensors headers, e.g. "F8_E4M3".
DEEPINFER_API std::string_view dtype_name(DType dtype) noexcept;

/// Bits per element: 4 for F4, 6 for the F6 types, else a multiple of 8.
DEEPINFER_API int dtype_bits(DType dtype) noexcept;

/// The data type with this safetensors name, or nothing.
DEEPINFER_API std::optional<DType> dtype_from_name(std::string_view name) noexcept;

/// A tensor whose bytes belong to somebody else: little-endian, row-major, dense, at any address.
struct TensorView {
  const std::byte* data = nullptr;
  std::uint64_t size_bytes = 0;
  DType dtype = DType::kU8;
  std::vector<std::int64_t> shape;  ///< rank 0 is a scalar
};

/// "[576, 576]"; "[]" for a scalar.
DEEPINFER_API std::string shape_string(const std::vector<std::int64_t>& shape);

}  // namespace deepinfer
