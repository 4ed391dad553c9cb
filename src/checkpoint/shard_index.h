// The index of a sharded checkpoint, `model.safetensors.index.json`:
//
//   {"metadata": {"total_size": 123}, "weight_map": {TENSOR: FILE, ...}}
//
// Only weight_map is used: total_size is informational, and wrong in some published repositories.
#pragma once

#include <map>
#include <string>
#include <string_view>

namespace deepinfer::checkpoint {

/// Tensor name -> file name.
using WeightMap = std::map<std::string, std::string>;

/// Reads the text of an index. Every file name in the result is a plain name: no separator, not
/// "..", not empty. `file_name` is for messages only. Throws Error(kBadInput).
WeightMap parse_shard_index(std::string_view text, const std::string& file_name);

}  // namespace deepinfer::checkpoint
