// `quantization_config` of the output, in the two spellings that other engines read.
#include <fmt/format.h>

#include <algorithm>

#include "models/quantize_plan.h"

namespace deepinfer::models {
namespace {

using Json = nlohmann::ordered_json;

bool is_quantized(const PlannedTensor& tensor) { return !tensor.scales.name.empty(); }

/// Modules with a matrix that stays as it is. Where the head is the embedding there is no tensor of
/// the head, but there is a module.
Json left_alone(const QuantizePlan& plan) {
  constexpr std::string_view kWeight = ".weight";
  std::vector<std::string> modules = {"lm_head"};
  for (const PlannedTensor& tensor : plan.tensors) {
    const std::string& name = tensor.source->name;
    if (is_quantized(tensor) || tensor.source->view.shape.size() != 2) continue;
    if (name.ends_with(kWeight)) modules.push_back(name.substr(0, name.size() - kWeight.size()));
  }
  std::sort(modules.begin(), modules.end());
  modules.erase(std::unique(modules.begin(), modules.end()), modules.end());
  return modules;
}

/// The layout of DeepSeek and transformers.
Json fp8_config(const QuantizePlan& plan, const weights::BlockFormat& block) {
  return {{"quant_method", "fp8"},          {"fmt", "e4m3"},
          {"activation_scheme", "dynamic"}, {"weight_block_size", {block.block_n, block.block_k}},
          {"scale_fmt", "ue8m0"},           {"modules_to_not_convert", left_alone(plan)}};
}

Json group_config(const QuantizePlan& plan, const TargetFormat& format) {
  Json targets = Json::array();
  for (const PlannedTensor& tensor : plan.tensors) {
    if (is_quantized(tensor) && tensor.format == &format) targets.push_back(tensor.module);
  }
  Json weights = {{"num_bits", format.block.element == Element::kE2m1 ? 4 : 8},
                  {"type", "float"},
                  {"symmetric", true},
                  {"dynamic", false}};
  if (format.is_fp8) {
    weights["strategy"] = "block";
    weights["block_structure"] = {format.block.block_n, format.block.block_k};
    weights["scale_dtype"] = "torch.bfloat16";
  } else {
    weights["strategy"] = "group";
    weights["group_size"] = format.block.block_k;
    weights["scale_dtype"] = "torch.uint8";
  }
  const Json activations = {
      {"num_bits", 8},       {"type", "float"},  {"symmetric", true},           {"dynamic", true},
      {"strategy", "group"}, {"group_size", 32}, {"scale_dtype", "torch.uint8"}};
  return {{"targets", targets},
          {"weights", weights},
          {"input_activations", activations},
          {"output_activations", nullptr},
          {"format", format.layout}};
}

Json compressed_tensors_config(const QuantizePlan& plan,
                               const std::vector<const TargetFormat*>& formats) {
  Json groups = Json::object();
  for (std::size_t i = 0; i < formats.size(); ++i) {
    groups[fmt::format("group_{}", i)] = group_config(plan, *formats[i]);
  }
  return {{"quant_method", "compressed-tensors"},
          {"format", formats.size() == 1 ? formats.front()->layout : "mixed-precision"},
          {"quantization_status", "compressed"},
          {"config_groups", groups},
          {"ignore", left_alone(plan)},
          {"kv_cache_scheme", nullptr}};
}

}  // namespace

std::string output_config(const QuantizePlan& plan) {
  std::vector<const TargetFormat*> formats;
  for (const TargetFormat& format : target_formats()) {
    const bool used =
        std::any_of(plan.tensors.begin(), plan.tensors.end(), [&](const PlannedTensor& tensor) {
          return is_quantized(tensor) && tensor.format == &format;
        });
    if (used) formats.push_back(&format);
  }
  Json config = plan.config;
  if (!formats.empty()) {
    config["quantization_config"] = plan.compressed_tensors
                                        ? compressed_tensors_config(plan, formats)
                                        : fp8_config(plan, formats.front()->block);
  }
  return config.dump(2) + "\n";
}

}  // namespace deepinfer::models
