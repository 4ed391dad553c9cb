// The dense decoder that Llama and its relatives share. A family is what it reads from config.json:
// no family has a forward pass of its own.
//
//   x += o(attention(rope(norm?(q(h))), rope(norm?(k(h))), v(h)))     h = norm(x)
//   x += down(silu(gate(h)) * up(h))                                  h = norm(x)
//   logits = head(norm(x))
//
// norm is RMSNorm; norm? that of each head, where the family has one.
#pragma once

#include <filesystem>
#include <memory>

#include "deepinfer/model.h"
#include "models/config.h"
#include "models/decoder_config.h"

namespace deepinfer::models {

/// Opens the checkpoint of `folder`, whose config.json is `config` and says `hyper`.
///
/// Throws Error(kBadInput) naming the tensor that is missing, left over or of another shape.
std::unique_ptr<Model> open_decoder(const std::filesystem::path& folder, const Config& config,
                                    const DecoderConfig& hyper, const ModelOptions& options);

}  // namespace deepinfer::models
