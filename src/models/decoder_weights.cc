#include "models/decoder_weights.h"

#include <fmt/format.h>

#include <string>
#include <utility>

#include "deepinfer/error.h"
#include "models/loader.h"

namespace deepinfer::models {
namespace {

DecoderLayer load_layer(const Loader& load, const DecoderConfig& h, std::int64_t index) {
  const std::string prefix = fmt::format("model.layers.{}.", index);
  const std::int64_t q_size = h.heads * h.head_dim;
  const std::int64_t kv_size = h.kv_heads * h.head_dim;
  DecoderLayer layer;
  layer.input_norm = load.bf16_vector(prefix + "input_layernorm.weight", h.hidden);
  layer.attention_norm = load.bf16_vector(prefix + "post_attention_layernorm.weight", h.hidden);
  if (h.head_norms) {
    layer.q_norm = load.bf16_vector(prefix + "self_attn.q_norm.weight", h.head_dim);
    layer.k_norm = load.bf16_vector(prefix + "self_attn.k_norm.weight", h.head_dim);
  }
  layer.q = load.linear(prefix + "self_attn.q_proj", q_size, h.hidden);
  layer.k = load.linear(prefix + "self_attn.k_proj", kv_size, h.hidden);
  layer.v = load.linear(prefix + "self_attn.v_proj", kv_size, h.hidden);
  layer.o = load.linear(prefix + "self_attn.o_proj", h.hidden, q_size);
  layer.gate = load.linear(prefix + "mlp.gate_proj", h.intermediate, h.hidden);
  layer.up = load.linear(prefix + "mlp.up_proj", h.intermediate, h.hidden);
  layer.down = load.linear(prefix + "mlp.down_proj", h.hidden, h.intermediate);
  return layer;
}

}  // namespace

DecoderWeights load_decoder(const Checkpoint& checkpoint, const DecoderConfig& hyper) {
  const Loader load(checkpoint);
  DecoderWeights w;
  w.embedding = load.bf16_matrix("model.embed_tokens.weight", hyper.vocabulary, hyper.hidden);
  for (std::int64_t i = 0; i < hyper.layers; ++i) w.layers.push_back(load_layer(load, hyper, i));
  w.norm = load.bf16_vector("model.norm.weight", hyper.hidden);
  const bool own_head = load.has_linear("lm_head");
  if (!own_head && !hyper.tied) {
    throw Error(
        ErrorCode::kBadInput,
        fmt::format("{}: tensor 'lm_head.weight' is missing and config.json does not tie it "
                    "to the embedding",
                    checkpoint.directory().string()));
  }
  w.head = load.linear(own_head && !hyper.tied ? "lm_head" : "model.embed_tokens", hyper.vocabulary,
                       hyper.hidden);
  load.refuse_unused({"lm_head.weight"});  // a tied model may repeat its embedding
  return w;
}

}  // namespace deepinfer::models
