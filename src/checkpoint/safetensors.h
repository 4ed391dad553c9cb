// The safetensors format, read strictly:
//
//   u64 little-endian N | N bytes of JSON header, padded with spaces | data
//   header: {"__metadata__": {string: string}, NAME: {"dtype", "shape", "data_offsets"}, ...}
//
// `data_offsets` [begin, end) count from the start of the data; together they must cover the data
// without a hole, an overlap or a rest. The data may start at any address.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "deepinfer/tensor.h"

namespace deepinfer::checkpoint {

/// A limit of the format, and ours against headers that only eat memory.
inline constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;

struct SafetensorsEntry {
  std::string name;
  TensorView view;  ///< lies in the bytes that were parsed
};

struct Safetensors {
  std::vector<SafetensorsEntry> tensors;  ///< in the order of their data
  std::map<std::string, std::string> metadata;
};

/// Reads a whole file of bytes. `file_name` is for messages only. The views point into `file`.
///
/// Throws Error(kBadInput) for everything that the format forbids, and for unknown data types.
Safetensors parse_safetensors(std::span<const std::byte> file, const std::string& file_name);

}  // namespace deepinfer::checkpoint
