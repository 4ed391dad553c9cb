// A tiny random checkpoint of Llama or of a family like it, in any mixture of formats, for tests.
// Sizes are ragged on purpose, and heads are wider than hidden / heads.
#pragma once

#include <cmath>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "random_data.h"
#include "safetensors_builder.h"

namespace deepinfer::testing {

struct TinyLlama {
  enum class Kind { kBf16, kFp8, kFp8Published, kMxfp4Mixture };
  static constexpr Kind kKinds[] = {Kind::kBf16, Kind::kFp8, Kind::kFp8Published,
                                    Kind::kMxfp4Mixture};

  std::string family = "llama";  ///< a model_type
  Kind kind = Kind::kBf16;
  std::int64_t hidden = 96;
  std::int64_t intermediate = 168;
  std::int64_t layers = 2;
  std::int64_t heads = 6;
  std::int64_t kv_heads = 2;
  std::int64_t head_dim = 24;
  std::int64_t vocabulary = 70;
  std::int64_t max_positions = 64;
  std::uint64_t seed = 1;
  /// Called with every tensor before it is added; may change bytes, shape, name or dtype.
  std::function<void(std::string& name, DType& dtype, std::vector<std::int64_t>& shape,
                     std::vector<std::uint8_t>& bytes)>
      change;
  /// Called with the config before it is written.
  std::function<void(nlohmann::json& config)> change_config;

  void write(const std::filesystem::path& folder) const;

 private:
  using Bytes = std::vector<std::uint8_t>;
  void add(SafetensorsBuilder& out, std::string name, DType dtype, std::vector<std::int64_t> shape,
           Bytes bytes) const {
    if (change) change(name, dtype, shape, bytes);
    out.add(name, dtype, shape, bytes);
  }
  void add_bf16(SafetensorsBuilder& out, test::Random& random, const std::string& name,
                std::vector<std::int64_t> shape, double deviation, double center) const;
  void add_linear(SafetensorsBuilder& out, test::Random& random, const std::string& module,
                  std::int64_t n, std::int64_t k) const;
  static Bytes small_codes(test::Random& random, std::int64_t count) {
    Bytes codes = random.bytes(static_cast<std::size_t>(count));
    for (std::uint8_t& c : codes) c &= 0xBF;  // |code| below 2: no NaN, no outliers
    return codes;
  }
  nlohmann::json config() const;
};

inline void TinyLlama::add_bf16(SafetensorsBuilder& out, test::Random& random,
                                const std::string& name, std::vector<std::int64_t> shape,
                                double deviation, double center) const {
  std::int64_t count = 1;
  for (const std::int64_t d : shape) count *= d;
  Bytes bytes;
  for (std::int64_t i = 0; i < count; ++i) {
    const double uniform = static_cast<double>(random.next() >> 11) * 0x1p-53;
    const auto value = static_cast<float>(center + deviation * (2 * uniform - 1));
    std::uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof(bits));
    bytes.push_back(static_cast<std::uint8_t>(bits >> 16));
    bytes.push_back(static_cast<std::uint8_t>(bits >> 24));
  }
  add(out, name, DType::kBf16, std::move(shape), std::move(bytes));
}

inline void TinyLlama::add_linear(SafetensorsBuilder& out, test::Random& random,
                                  const std::string& module, std::int64_t n, std::int64_t k) const {
  const bool mlp = module.find(".mlp.") != std::string::npos;
  const auto scales = [&](std::int64_t count, int center) {
    Bytes bytes(static_cast<std::size_t>(count));
    for (std::uint8_t& b : bytes) {
      b = static_cast<std::uint8_t>(center + static_cast<int>(random.below(3)));
    }
    return bytes;
  };
  if (kind == Kind::kBf16) {
    add_bf16(out, random, module + ".weight", {n, k}, 0.2, 0.0);
  } else if (kind == Kind::kFp8Published) {  // as Qwen does: 128x128, scales in bf16
    add(out, module + ".weight", DType::kF8E4m3, {n, k}, small_codes(random, n * k));
    const std::int64_t num_scales = (n + 127) / 128 * ((k + 127) / 128);
    Bytes bytes = random.bytes(static_cast<std::size_t>(2 * num_scales));
    for (std::size_t i = 1; i < bytes.size(); i += 2) bytes[i] = 0x3D;  // 2^-5 to 2^-3
    add(out, module + ".weight_scale_inv", DType::kBf16, {(n + 127) / 128, (k + 127) / 128},
        std::move(bytes));
  } else if (kind == Kind::kMxfp4Mixture && mlp) {
    add(out, module + ".weight_packed", DType::kU8, {n, k / 2},
        random.bytes(static_cast<std::size_t>(n * k / 2)));
    add(out, module + ".weight_scale", DType::kU8, {n, (k + 31) / 32},
        scales(n * ((k + 31) / 32), 122));
  } else {
    add(out, module + ".weight", DType::kF8E4m3, {n, k}, small_codes(random, n * k));
    const char* suffix = kind == Kind::kFp8 ? ".weight_scale_inv" : ".weight_scale";
    add(out, module + suffix, DType::kF8E8m0, {(n + 31) / 32, (k + 31) / 32},
        scales((n + 31) / 32 * ((k + 31) / 32), 123));
  }
}

inline nlohmann::json TinyLlama::config() const {
  nlohmann::json c = {{"model_type", family},
                      {"hidden_size", hidden},
                      {"intermediate_size", intermediate},
                      {"num_hidden_layers", layers},
                      {"num_attention_heads", heads},
                      {"num_key_value_heads", kv_heads},
                      {"head_dim", head_dim},
                      {"vocab_size", vocabulary},
                      {"max_position_embeddings", max_positions},
                      {"rms_norm_eps", 1e-5},
                      {"rope_theta", 10000.0},
                      {"hidden_act", "silu"},
                      {"tie_word_embeddings", true},
                      {"eos_token_id", 2}};
  if (kind == Kind::kFp8) {
    c["quantization_config"] = {{"quant_method", "fp8"},
                                {"activation_scheme", "dynamic"},
                                {"weight_block_size", {32, 32}},
                                {"scale_fmt", "ue8m0"}};
  } else if (kind == Kind::kFp8Published) {
    c["quantization_config"] = {{"quant_method", "fp8"},
                                {"fmt", "e4m3"},
                                {"activation_scheme", "dynamic"},
                                {"weight_block_size", {128, 128}},
                                {"modules_to_not_convert", {"lm_head"}}};
  } else if (kind == Kind::kMxfp4Mixture) {
    const nlohmann::json mxfp4 = {{"num_bits", 4},    {"type", "float"},   {"strategy", "group"},
                                  {"group_size", 32}, {"symmetric", true}, {"dynamic", false}};
    const nlohmann::json fp8 = {{"num_bits", 8},       {"type", "float"},
                                {"strategy", "block"}, {"block_structure", {32, 32}},
                                {"symmetric", true},   {"dynamic", false}};
    c["quantization_config"] = {{"quant_method", "compressed-tensors"},
                                {"format", "mixed-precision"},
                                {"config_groups",
                                 {{"group_0",
                                   {{"targets", {"re:.*mlp\\..*_proj$"}},
                                    {"format", "mxfp4-pack-quantized"},
                                    {"weights", mxfp4}}},
                                  {"group_1",
                                   {{"targets", {"re:.*self_attn\\..*_proj$"}},
                                    {"format", "float-quantized"},
                                    {"weights", fp8}}}}},
                                {"ignore", {"lm_head"}}};
  }
  if (change_config) change_config(c);
  return c;
}

inline void TinyLlama::write(const std::filesystem::path& folder) const {
  std::filesystem::create_directories(folder);
  test::Random random(seed);
  SafetensorsBuilder out;
  add_bf16(out, random, "model.embed_tokens.weight", {vocabulary, hidden}, 1.0, 0.0);
  add_bf16(out, random, "model.norm.weight", {hidden}, 0.5, 1.0);
  for (std::int64_t i = 0; i < layers; ++i) {
    const std::string prefix = "model.layers." + std::to_string(i) + ".";
    add_bf16(out, random, prefix + "input_layernorm.weight", {hidden}, 0.5, 1.0);
    add_bf16(out, random, prefix + "post_attention_layernorm.weight", {hidden}, 0.5, 1.0);
    if (family == "qwen3") {
      add_bf16(out, random, prefix + "self_attn.q_norm.weight", {head_dim}, 0.5, 1.0);
      add_bf16(out, random, prefix + "self_attn.k_norm.weight", {head_dim}, 0.5, 1.0);
    }
    const std::int64_t q_size = heads * head_dim;
    const std::int64_t kv_size = kv_heads * head_dim;
    add_linear(out, random, prefix + "self_attn.q_proj", q_size, hidden);
    add_linear(out, random, prefix + "self_attn.k_proj", kv_size, hidden);
    add_linear(out, random, prefix + "self_attn.v_proj", kv_size, hidden);
    add_linear(out, random, prefix + "self_attn.o_proj", hidden, q_size);
    add_linear(out, random, prefix + "mlp.gate_proj", intermediate, hidden);
    add_linear(out, random, prefix + "mlp.up_proj", intermediate, hidden);
    add_linear(out, random, prefix + "mlp.down_proj", hidden, intermediate);
  }
  out.write(folder / "model.safetensors");
  write_file(folder / "config.json", config().dump(2));
}

}  // namespace deepinfer::testing
