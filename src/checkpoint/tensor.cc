// The data types of the safetensors format and how shapes are written.
#include "deepinfer/tensor.h"

#include <array>

namespace deepinfer {
namespace {

struct DTypeRow {
  std::string_view name;
  int bits;
};

// In the order of DType.
constexpr std::array<DTypeRow, 22> kDTypes = {{
    {"BOOL", 8},        {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"U8", 8},
    {"I8", 8},          {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8},
    {"F8_E5M2FNUZ", 8}, {"I16", 16},    {"U16", 16},    {"F16", 16},    {"BF16", 16},
    {"I32", 32},        {"U32", 32},    {"F32", 32},    {"C64", 64},    {"F64", 64},
    {"I64", 64},        {"U64", 64},
}};
static_assert(kDTypes.size() == static_cast<std::size_t>(DType::kU64) + 1);

}  // namespace

std::string_view dtype_name(DType dtype) noexcept {
  return kDTypes[static_cast<std::size_t>(dtype)].name;
}

int dtype_bits(DType dtype) noexcept { return kDTypes[static_cast<std::size_t>(dtype)].bits; }

std::optional<DType> dtype_from_name(std::string_view name) noexcept {
  for (std::size_t i = 0; i < kDTypes.size(); ++i) {
    if (kDTypes[i].name == name) return static_cast<DType>(i);
  }
  return std::nullopt;
}

std::string shape_string(const std::vector<std::int64_t>& shape) {
  std::string out = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (i != 0) out += ", ";
    out += std::to_string(shape[i]);
  }
  return out + "]";
}

}  // namespace deepinfer
