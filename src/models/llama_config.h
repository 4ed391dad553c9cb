// What a Llama's config.json says, checked: whatever this version would compute otherwise than the
// vendor's code is refused by name.
#pragma once

#include <cstdint>

#include "models/config.h"

namespace deepinfer::models {

struct LlamaConfig {
  std::int64_t hidden;
  std::int64_t intermediate;
  std::int64_t layers;
  std::int64_t heads;
  std::int64_t kv_heads;
  std::int64_t head_dim;
  std::int64_t vocabulary;
  std::int64_t max_positions;
  float eps;
  double rope_base;
  bool tied;
};

/// Throws Error(kBadInput) for values that cannot be, Error(kUnsupported) for options that are not
/// implemented (scaled rope, biases, other activations).
LlamaConfig read_llama(const Config& config);

}  // namespace deepinfer::models
