// What config.json says about a dense decoder, checked: whatever this version would compute
// otherwise than the vendor's code is refused by name.
#pragma once

#include <cstdint>

#include "models/config.h"

namespace deepinfer::models {

/// All in which dense decoders differ. A family reads it from config.json with read_decoder() and
/// sets what its architecture has beyond Llama's.
struct DecoderConfig {
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
  bool head_norms;  ///< RMSNorm of each head of q and k before RoPE: `q_norm` and `k_norm`
};

/// The members that all families write alike; `head_norms` is false.
///
/// Throws Error(kBadInput) for values that cannot be, Error(kUnsupported) for options that are not
/// implemented (scaled rope, biases, other activations).
DecoderConfig read_decoder(const Config& config);

}  // namespace deepinfer::models
