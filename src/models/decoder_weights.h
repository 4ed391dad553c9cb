// The weights of a dense decoder: views of the mapped files, norms copied.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "deepinfer/checkpoint.h"
#include "deepinfer/weight.h"
#include "models/decoder_config.h"

namespace deepinfer::models {

struct DecoderLayer {
  std::vector<std::uint16_t> input_norm;      // bf16 [hidden]
  std::vector<std::uint16_t> attention_norm;  // bf16 [hidden]
  std::vector<std::uint16_t> q_norm, k_norm;  // bf16 [head_dim], empty without head norms
  Weight q, k, v, o;
  Weight gate, up, down;
};

struct DecoderWeights {
  const std::byte* embedding = nullptr;  // bf16 [vocabulary, hidden] in the mapped file
  std::vector<DecoderLayer> layers;
  std::vector<std::uint16_t> norm;  // bf16 [hidden]
  Weight head;                      // [vocabulary, hidden]
};

/// The checkpoint must outlive the result. Throws Error(kBadInput) naming the tensor that is
/// missing, left over or of another shape or type than `hyper` says.
DecoderWeights load_decoder(const Checkpoint& checkpoint, const DecoderConfig& hyper);

}  // namespace deepinfer::models
