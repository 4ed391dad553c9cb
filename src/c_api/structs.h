// Structs whose first field is their size as the caller knows them: older callers know fewer
// fields, newer ones more.
#pragma once

#include <array>
#include <cstddef>
#include <cstring>
#include <string>

#include "c_api/refuse.h"
#include "deepinfer/deepinfer.h"

namespace deepinfer::c_api {

// More than any version of any struct: a size that was never set is not followed into memory.
constexpr std::size_t kMaxStructBytes = 4096;

/// Where each field of T ends, ascending, without struct_size.
template <class T>
struct FieldEnds;

template <class T, class Field>
constexpr std::size_t end_of(std::size_t offset, Field T::* /*field*/) {
  return offset + sizeof(Field);  // NOLINT(bugprone-sizeof-expression): of a pointer, indeed
}

#define DEEPINFER_END(type, field) end_of(offsetof(type, field), &type::field)
template <>
struct FieldEnds<deepinfer_tensor> {
  static constexpr std::array kEnds = {
      DEEPINFER_END(deepinfer_tensor, data), DEEPINFER_END(deepinfer_tensor, dtype),
      DEEPINFER_END(deepinfer_tensor, rank), DEEPINFER_END(deepinfer_tensor, shape),
      DEEPINFER_END(deepinfer_tensor, stride)};
};
template <>
struct FieldEnds<deepinfer_executor> {
  static constexpr std::array kEnds = {DEEPINFER_END(deepinfer_executor, user),
                                       DEEPINFER_END(deepinfer_executor, num_threads),
                                       DEEPINFER_END(deepinfer_executor, parallel)};
};
template <>
struct FieldEnds<deepinfer_context_options> {
  static constexpr std::array kEnds = {DEEPINFER_END(deepinfer_context_options, num_threads),
                                       DEEPINFER_END(deepinfer_context_options, gemm),
                                       DEEPINFER_END(deepinfer_context_options, split2),
                                       DEEPINFER_END(deepinfer_context_options, isa),
                                       DEEPINFER_END(deepinfer_context_options, executor)};
};
template <>
struct FieldEnds<deepinfer_weight_info> {
  static constexpr std::array kEnds = {
      DEEPINFER_END(deepinfer_weight_info, dtype), DEEPINFER_END(deepinfer_weight_info, groups),
      DEEPINFER_END(deepinfer_weight_info, n), DEEPINFER_END(deepinfer_weight_info, k)};
};
template <>
struct FieldEnds<deepinfer_kernel_scale_info> {
  static constexpr std::array kEnds = {DEEPINFER_END(deepinfer_kernel_scale_info, fits),
                                       DEEPINFER_END(deepinfer_kernel_scale_info, groups),
                                       DEEPINFER_END(deepinfer_kernel_scale_info, rows),
                                       DEEPINFER_END(deepinfer_kernel_scale_info, columns)};
};
#undef DEEPINFER_END

/// How many bytes of `*in` are fields that both sides know, struct_size among them. Refuses sizes
/// that are none, and unknown bytes that are not zero.
template <class T>
std::size_t known_bytes(const Refuse& refuse, const char* name, const T* in) {
  static_assert(FieldEnds<T>::kEnds.back() == sizeof(T), "a newer field could hide in the padding");
  if (in == nullptr) refuse(name, "is null");
  const std::size_t size = in->struct_size;
  if (size < sizeof(size) || size > kMaxStructBytes) {
    refuse(name, "has struct_size " + std::to_string(size) + ", expected " +
                     std::to_string(sizeof(T)) + ", its sizeof");
  }
  const auto* bytes = reinterpret_cast<const unsigned char*>(in);
  for (std::size_t i = sizeof(T); i < size; ++i) {
    if (bytes[i] != 0) {
      refuse(name, "has struct_size " + std::to_string(size) + ", this library knows " +
                       std::to_string(sizeof(T)) + " bytes, and those past them are not zero");
    }
  }
  std::size_t known = sizeof(size);
  for (const std::size_t end : FieldEnds<T>::kEnds) {
    if (end <= size) known = end;
  }
  return known;
}

/// `*in`, with the fields of `defaults` where the caller has none.
template <class T>
T read_struct(const Refuse& refuse, const char* name, const T* in, T defaults) {
  std::memcpy(&defaults, in, known_bytes(refuse, name, in));
  return defaults;
}

/// Writes the fields that the caller has; `known` is from known_bytes().
template <class T>
void write_struct(T* out, T values, std::size_t known) {
  values.struct_size = out->struct_size;
  std::memcpy(out, &values, known);
}

}  // namespace deepinfer::c_api
