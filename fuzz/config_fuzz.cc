// Feeds texts to the two readers of config.json: what it says about quantization, and the sizes of
// a Llama. What they accept must be usable; what they refuse must be refused with one line.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "deepinfer/error.h"
#include "fuzz.h"
#include "json_mutator.h"
#include "models/config.h"
#include "models/llama_config.h"
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
  if (config.block()) require(config.block()->n > 0 && config.block()->k > 0);
  for (const char* module : {"", "model.layers.0.mlp.up_proj", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaab"}) {
    const auto* group = config.group_of(module);
    if (group == nullptr || !group->unsupported.empty()) continue;
    require(group->bits == 4 || group->bits == 8);
    require(group->block.n > 0 && group->block.k > 0);
  }
  return config.method() != QuantizationConfig::Method::kNone;
}

bool reads_llama(std::string_view text) {
  const Config config = Config::from_text(text, "config.json");
  for (const std::int32_t id : config.ids("eos_token_id")) require(id >= 0);
  const auto sizes = deepinfer::models::read_llama(config);
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
  const bool llama = accepted(reads_llama, text);
  if (quantization || llama) Tally::instance().accepted(data, size);
  return 0;
}
