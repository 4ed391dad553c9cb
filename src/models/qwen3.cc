// The dense Qwen3 family: the decoder of decoder.h with an RMSNorm of each head of q and k, over
// head_dim, between the projection and RoPE. head_dim is a number of its own: heads * head_dim need
// not be hidden.
//
// bf16 roundings are where transformers' Qwen3ForCausalLM has them when it runs in bf16: those of
// Llama, and in q_norm and k_norm two more, after x / rms and after the product with the weight.
// Qwen3-FP8 (128x128 blocks, `weight_scale_inv` in bf16 or f16) takes activations quantized as
// docs/determinism.md says, not in Qwen's blocks of 128 with f32 scales.
#include <string>

#include "models/decoder.h"
#include "models/registry.h"

namespace deepinfer::models {
namespace {

/// Layers that see the last positions only. Published configs write a `sliding_window` that
/// `use_sliding_window` turns off; newer ones list a type for every layer.
void refuse_windows(const Config& config) {
  if (config.flag_or("use_sliding_window", false)) {
    config.unsupported("use_sliding_window", "attention over a window is not implemented");
  }
  if (!config.has("layer_types")) return;
  const nlohmann::json& types = config.json()["layer_types"];
  if (!types.is_array()) config.refuse("layer_types", "an array");
  for (const nlohmann::json& type : types) {
    if (type == "full_attention") continue;
    config.unsupported("layer_types", "only \"full_attention\" is implemented");
  }
}

}  // namespace

std::unique_ptr<Model> open_qwen3(const std::filesystem::path& folder, const Config& config,
                                  const ModelOptions& options) {
  // Transformers has defaults for these that fit one size of the family; no checkpoint relies on
  // them.
  for (const char* key : {"head_dim", "num_key_value_heads"}) {
    if (!config.has(key)) config.refuse(key, "a number");
  }
  refuse_windows(config);
  DecoderConfig hyper = read_decoder(config);
  hyper.head_norms = true;
  return open_decoder(folder, config, hyper, options);
}

}  // namespace deepinfer::models
