#include "models/decoder_config.h"

#include <fmt/format.h>

namespace deepinfer::models {
namespace {

constexpr std::int64_t kMaxSize = std::int64_t{1} << 24;  // no model is near; products stay small

DecoderConfig read_sizes(const Config& c) {
  DecoderConfig h = {};
  h.hidden = c.integer("hidden_size", 1, kMaxSize);
  h.intermediate = c.integer("intermediate_size", 1, kMaxSize);
  h.layers = c.integer("num_hidden_layers", 1, 4096);
  h.heads = c.integer("num_attention_heads", 1, 65536);
  h.kv_heads = c.integer_or("num_key_value_heads", h.heads, 1, 65536);
  if (!c.has("head_dim") && h.hidden % h.heads != 0) {
    c.refuse("head_dim", fmt::format("a number, since {} heads do not divide hidden_size {}",
                                     h.heads, h.hidden));
  }
  h.head_dim = c.integer_or("head_dim", h.hidden / h.heads, 2, 65536);
  h.vocabulary = c.integer("vocab_size", 1, kMaxSize);
  h.max_positions = c.integer("max_position_embeddings", 1, std::int64_t{1} << 30);
  const double eps = c.number("rms_norm_eps");
  if (!(eps >= 0.0 && eps <= 1.0)) c.refuse("rms_norm_eps", "a number from 0 to 1");
  h.eps = static_cast<float>(eps);
  h.tied = c.flag_or("tie_word_embeddings", false);
  h.rope_base = c.number_or("rope_theta", 10000.0);
  if (h.heads % h.kv_heads != 0) {
    c.refuse("num_key_value_heads", fmt::format("a divisor of {} attention heads", h.heads));
  }
  if (h.head_dim < 2 || h.head_dim % 2 != 0) {
    c.refuse("head_dim",
             fmt::format("an even number (by hidden_size and heads it is {})", h.head_dim));
  }
  if (c.has("hidden_act") && c.text("hidden_act") != "silu") {
    c.unsupported("hidden_act", "only silu is implemented");
  }
  for (const char* flag : {"attention_bias", "mlp_bias"}) {
    if (c.flag_or(flag, false)) c.unsupported(flag, "biases are not implemented");
  }
  return h;
}

/// Newer configs keep rope_theta in `rope_parameters`; anything but the plain form is refused.
void read_rope(const Config& c, DecoderConfig& h) {
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (!c.has(key)) continue;
    const nlohmann::json& rope = c.json()[key];
    if (!rope.is_object()) c.refuse(key, "an object");
    for (const auto& [name, value] : rope.items()) {
      if (name == "rope_theta") {
        if (!value.is_number()) c.refuse(key, "a number as rope_theta");
        h.rope_base = value.get<double>();
      } else if ((name != "rope_type" && name != "type") || value != "default") {
        c.unsupported(key, "only the default rope_type, with a rope_theta, is implemented");
      }
    }
  }
  if (!(h.rope_base > 1.0 && h.rope_base < 1e30)) c.refuse("rope_theta", "a number above 1");
}

}  // namespace

DecoderConfig read_decoder(const Config& config) {
  DecoderConfig h = read_sizes(config);
  read_rope(config, h);
  return h;
}

}  // namespace deepinfer::models
