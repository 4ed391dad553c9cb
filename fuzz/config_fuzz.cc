// Feeds texts to the two readers of config.json: what it says about quantization, and the sizes of
// a dense decoder. What they accept must be usable; what they refuse must be refused with one line.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "deepinfer/error.h"
#include "fuzz.h"
#include "json_mutator.h"
#include "models/config.h"
#include "models/decoder_config.h"
#include "models/quantization_config.h"

namespace {

using namespace deepinfer::fuzz;
using deepinfer::models::Config;
using deepinfer::models::QuantizationConfig;

constexpr std::string_view kWords[] = {"quantization_config",
                                       "quant_method",
                                       "fp8",
                                       "fmt",
                                       "e4m3",
                                       "weight_block_size",
                                       "expert_dtype",
                                       "fp4",
                                       "compressed-tensors",
                                       "config_groups",
                                       "group_0",
                                       "targets",
                                       "Linear",
                                       "re:.*mlp",
                                       "re:(a+)+$",
                                       "re:(",
                                       "weights",
                                       "num_bits",
                                       "type",
                                       "float",
                                       "symmetric",
                                       "strategy",
                                       "group",
                                       "block",
                                       "block_structure",
                                       "group_size",
                                       "actorder",
                                       "text_config",
                                       "hidden_size",
                                       "num_attention_heads",
                                       "num_key_value_heads",
                                       "head_dim",
                                       "rope_scaling",
                                       "rope_parameters",
                                       "rope_theta",
                                       "rope_type",
                                       "default",
                                       "eos_token_id",
                                       "rms_norm_eps"};

bool reads_quantization(std::string_view text) {
  const QuantizationConfig config = QuantizationConfig::parse(text, "config.json");
  for (const char* module : {"", "model.layers.0.mlp.up_proj", "model.layers.0.mlp.experts.1.w1",
                             "aaaaaaaaaaaaaaaaaaaaaaaaaaaaab"}) {
    const auto& statement = config.about(module);
    if (statement.block) require(statement.block->n > 0 && statement.block->k > 0);
    if (!statement.refused.empty()) require_message(statement.refused);
  }
  return config.method() != deepinfer::models::Method::kNone;
}

bool reads_decoder(std::string_view text) {
  const Config config = Config::from_text(text, "config.json");
  for (const std::int32_t id : config.ids("eos_token_id")) require(id >= 0);
  const auto sizes = deepinfer::models::read_decoder(config);
  require(sizes.hidden > 0 && sizes.layers > 0 && sizes.heads % sizes.kv_heads == 0);
  require(sizes.head_dim > 0 && sizes.head_dim % 2 == 0);
  return true;
}

template <typename Reader>
bool accepted(Reader&& reader, std::string_view text) {
  try {
    return reader(text);
  } catch (const deepinfer::Error& error) {
    require_message(error.what());
    return false;
  }
}

}  // namespace

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size,
                                               std::size_t max_size, unsigned seed) {
  return mutate_json_input(data, size, max_size, seed, kWords);
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Tally::instance().input();
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const bool quantization = accepted(reads_quantization, text);
  const bool decoder = accepted(reads_decoder, text);
  if (quantization || decoder) Tally::instance().accepted(data, size);
  return 0;
}
