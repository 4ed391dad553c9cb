// Models that cannot be what they say: refused when they are opened, with the name of the thing.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "deepinfer/error.h"
#include "deepinfer/model.h"
#include "tiny_llama.h"

namespace deepinfer {
namespace {

using testing::TempDir;
using testing::TinyLlama;
using Kind = TinyLlama::Kind;
using Json = nlohmann::json;
using Damage = std::function<void(TinyLlama&)>;

struct Refusal {
  const char* name;
  ErrorCode code;
  const char* message;  // part of it
  Damage damage;
};

template <typename Change>
Damage config(Change change) {
  return [change](TinyLlama& t) { t.change_config = change; };
}

/// Writes `tensor` under a name that nobody asks for.
Damage without(const std::string& tensor) {
  return [tensor](TinyLlama& t) {
    t.change = [tensor](std::string& name, DType&, std::vector<std::int64_t>&,
                        std::vector<std::uint8_t>&) {
      if (name == tensor) name = "zzz";
    };
  };
}

void expect_refusal(const std::string& family, const Refusal& refusal) {
  const TempDir dir;
  TinyLlama tiny;
  tiny.family = family;
  refusal.damage(tiny);
  tiny.write(dir.path());
  try {
    Model::open(dir.path());
    ADD_FAILURE() << family << ": " << refusal.name << " was accepted";
  } catch (const Error& error) {
    const std::string what = error.what();
    EXPECT_EQ(error.code(), refusal.code) << family << ": " << refusal.name << ": " << what;
    EXPECT_NE(what.find(refusal.message), std::string::npos)
        << family << ": " << refusal.name << ": " << what;
    EXPECT_EQ(what.find('\n'), std::string::npos) << what;
  }
}

const std::vector<Refusal>& refusals_of_every_family() {
  static const std::vector<Refusal> refusals = {
      {"model type", ErrorCode::kUnsupported, "\"mamba\"",
       config([](Json& c) { c["model_type"] = "mamba"; })},
      {"no model type", ErrorCode::kBadInput, "model_type",
       config([](Json& c) { c.erase("model_type"); })},
      {"negative size", ErrorCode::kBadInput, "hidden_size",
       config([](Json& c) { c["hidden_size"] = -96; })},
      {"text for a number", ErrorCode::kBadInput, "vocab_size",
       config([](Json& c) { c["vocab_size"] = "many"; })},
      {"rope scaling", ErrorCode::kUnsupported, "rope_scaling", config([](Json& c) {
         c["rope_scaling"] = {{"rope_type", "llama3"}, {"factor", 8}};
       })},
      {"activation", ErrorCode::kUnsupported, "hidden_act",
       config([](Json& c) { c["hidden_act"] = "gelu"; })},
      {"biases", ErrorCode::kUnsupported, "attention_bias",
       config([](Json& c) { c["attention_bias"] = true; })},
      {"untied without a head", ErrorCode::kBadInput, "lm_head.weight",
       config([](Json& c) { c["tie_word_embeddings"] = false; })},
      {"quantization method", ErrorCode::kUnsupported, "awq", config([](Json& c) {
         c["quantization_config"] = {{"quant_method", "awq"}};
       })},
      {"too few layers", ErrorCode::kBadInput, "model.layers.1.",
       config([](Json& c) { c["num_hidden_layers"] = 1; })},
      {"rope theta of text", ErrorCode::kBadInput, "rope_parameters", config([](Json& c) {
         c["rope_parameters"] = {{"rope_theta", "500000"}};
       })},
      {"negative rope theta", ErrorCode::kBadInput, "rope_theta", config([](Json& c) {
         c["rope_parameters"] = {{"rope_theta", -1}};
       })},
      {"rope factor without a type", ErrorCode::kUnsupported, "rope_scaling", config([](Json& c) {
         c["rope_scaling"] = {{"factor", 8}};
       })},
      {"heads that do not divide", ErrorCode::kBadInput, "head_dim", config([](Json& c) {
         c.erase("head_dim");
         c["num_attention_heads"] = 64;
       })},
      {"negative eps", ErrorCode::kBadInput, "rms_norm_eps",
       config([](Json& c) { c["rms_norm_eps"] = -1; })},
      {"end token beyond 32 bits", ErrorCode::kBadInput, "eos_token_id",
       config([](Json& c) { c["eos_token_id"] = 4294967298; })},
      {"too many layers", ErrorCode::kBadInput, "model.layers.2.",
       config([](Json& c) { c["num_hidden_layers"] = 3; })},
      {"wrong shape", ErrorCode::kBadInput, "mlp.gate_proj",
       config([](Json& c) { c["intermediate_size"] = 100; })},
      {"missing scales", ErrorCode::kBadInput, "model.layers.0.mlp.up_proj.weight",
       [](TinyLlama& t) {
         t.kind = Kind::kFp8;
         t.change = [](std::string& name, DType&, std::vector<std::int64_t>&,
                       std::vector<std::uint8_t>&) {
           if (name == "model.layers.0.mlp.up_proj.weight_scale_inv") name = "zzz";
         };
       }},
      {"scale grid", ErrorCode::kBadInput, "model.layers.0.mlp.up_proj",
       [](TinyLlama& t) {
         t.kind = Kind::kFp8;
         t.change = [](std::string& name, DType&, std::vector<std::int64_t>& shape,
                       std::vector<std::uint8_t>& bytes) {
           if (name != "model.layers.0.mlp.up_proj.weight_scale_inv") return;
           shape = {1, 3};
           bytes.resize(3);
         };
       }},
      {"norm as f32", ErrorCode::kBadInput, "model.norm.weight",
       [](TinyLlama& t) {
         t.change = [](std::string& name, DType& dtype, std::vector<std::int64_t>& shape,
                       std::vector<std::uint8_t>&) {
           if (name != "model.norm.weight") return;
           dtype = DType::kF32;
           shape = {48};
         };
       }},
  };
  return refusals;
}

TEST(model_refusal_test, damaged_models_are_refused_by_name) {
  for (const std::string_view family : Model::families()) {
    for (const Refusal& refusal : refusals_of_every_family()) {
      expect_refusal(std::string(family), refusal);
    }
  }
}

TEST(model_refusal_test, head_norms_belong_to_the_families_that_have_them) {
  const char* q_norm = "model.layers.1.self_attn.q_norm.weight";
  const char* k_norm = "model.layers.0.self_attn.k_norm.weight";
  expect_refusal("qwen3", {"no q_norm", ErrorCode::kBadInput, q_norm, without(q_norm)});
  expect_refusal("qwen3", {"no k_norm", ErrorCode::kBadInput, k_norm, without(k_norm)});
  const Damage over_the_row = [=](TinyLlama& t) {
    t.change = [=](std::string& name, DType&, std::vector<std::int64_t>& shape,
                   std::vector<std::uint8_t>& bytes) {
      if (name != q_norm) return;
      shape = {6 * shape[0]};
      bytes.resize(6 * bytes.size());
    };
  };
  expect_refusal("qwen3", {"norm over all heads", ErrorCode::kBadInput, q_norm, over_the_row});
  // Computed as another family these weights would say nonsense.
  expect_refusal("qwen3", {"norms left over", ErrorCode::kBadInput,
                           "model.layers.0.self_attn.k_norm.weight' is not part of the model",
                           config([](Json& c) { c["model_type"] = "llama"; })});
  expect_refusal("llama", {"norms missing", ErrorCode::kBadInput, "q_norm.weight",
                           config([](Json& c) { c["model_type"] = "qwen3"; })});
}

TEST(model_refusal_test, qwen3_options_that_are_not_computed) {
  const std::vector<Refusal> refusals = {
      {"window", ErrorCode::kUnsupported, "use_sliding_window", config([](Json& c) {
         c["use_sliding_window"] = true;
         c["sliding_window"] = 16;
       })},
      {"windows by layer", ErrorCode::kUnsupported, "layer_types", config([](Json& c) {
         c["layer_types"] = {"full_attention", "sliding_attention"};
       })},
      {"layer types of text", ErrorCode::kBadInput, "layer_types",
       config([](Json& c) { c["layer_types"] = "full_attention"; })},
      {"yarn", ErrorCode::kUnsupported, "rope_scaling", config([](Json& c) {
         c["rope_scaling"] = {
             {"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 32768}};
       })},
      {"no head_dim", ErrorCode::kBadInput, "head_dim",
       config([](Json& c) { c.erase("head_dim"); })},
      {"no kv heads", ErrorCode::kBadInput, "num_key_value_heads",
       config([](Json& c) { c.erase("num_key_value_heads"); })},
  };
  for (const Refusal& refusal : refusals) expect_refusal("qwen3", refusal);
}

TEST(model_refusal_test, qwen3_options_that_are_off_are_read) {
  const TempDir dir;
  TinyLlama tiny;
  tiny.family = "qwen3";
  tiny.change_config = [](Json& c) {
    c["use_sliding_window"] = false;
    c["sliding_window"] = 4096;
    c["max_window_layers"] = 1;
    c["layer_types"] = {"full_attention", "full_attention"};
    c["rope_scaling"] = nullptr;
    c["attention_bias"] = false;
  };
  tiny.write(dir.path());
  EXPECT_EQ(Model::open(dir.path())->info().num_layers, 2);
}

TEST(model_refusal_test, missing_folders_and_files_are_refused) {
  const TempDir dir;
  EXPECT_THROW(Model::open(dir.path() / "nowhere"), Error);
  EXPECT_THROW(Model::open(dir.path()), Error);  // no config.json
  TinyLlama().write(dir.path());
  EXPECT_THROW(Model::open(dir.path() / "model.safetensors"), Error);
  std::filesystem::remove(dir.path() / "model.safetensors");
  EXPECT_THROW(Model::open(dir.path()), Error);
}

}  // namespace
}  // namespace deepinfer
