#include "models/quantization_config.h"

#include <fmt/format.h>

#include <algorithm>

#include "checkpoint/message.h"
#include "deepinfer/error.h"
#include "json/json_node.h"

namespace deepinfer::models {
namespace {

using checkpoint::printable;

constexpr std::int64_t kLargestBlock = std::int64_t{1} << 31;

BlockShape read_block(const json::JsonNode& node) {
  const auto side = [&](std::size_t i) {
    const std::int64_t value = node[i].integer();
    if (value < 1 || value > kLargestBlock) {
      node.bad(fmt::format("expected two positive block sides, found {}", value));
    }
    return value;
  };
  if (node.array().size() != 2) {
    node.bad(fmt::format("expected two block sides, found {}", node.array().size()));
  }
  return {side(0), side(1)};
}

/// Members that say how a quantized value is more than code * scale.
std::string why_unsupported(const json::JsonNode& weights) {
  const json::JsonNode symmetric = weights["symmetric"];
  if (!symmetric.is_null() && !symmetric.boolean()) return "symmetric is false";
  if (!weights["actorder"].is_null()) return "actorder is set";
  const std::string& type = weights["type"].string();
  if (type != "float") return fmt::format("type is \"{}\"", printable(type));
  return "";
}

/// Bits and block of a group, or why it cannot be used.
void read_scheme(const json::JsonNode& weights, QuantizationGroup& group) {
  group.unsupported = why_unsupported(weights);
  if (!group.unsupported.empty()) return;
  const std::int64_t bits = weights["num_bits"].integer();
  const std::string& strategy = weights["strategy"].string();
  if (strategy == "group" && (bits == 4 || bits == 8)) {
    const std::int64_t size = weights["group_size"].integer();
    if (size == 32) {
      group.block = {1, size};
    } else {
      group.unsupported = fmt::format("group_size is {}, expected 32", size);
    }
  } else if (strategy == "block" && bits == 8) {
    group.block = read_block(weights["block_structure"]);
  } else {
    group.unsupported = fmt::format("strategy \"{}\" with {} bits", printable(strategy), bits);
  }
  group.bits = static_cast<int>(bits);
}

void read_targets(const json::JsonNode& targets, QuantizationGroup& group) {
  constexpr std::string_view kPatternMark = "re:";
  for (std::size_t i = 0; i < targets.array().size(); ++i) {
    const std::string& target = targets[i].string();
    if (target.starts_with(kPatternMark)) {
      group.patterns.emplace_back(std::string_view(target).substr(kPatternMark.size()),
                                  targets[i].where());
    } else if (target == "Linear") {
      group.all_linear = true;
    } else {
      group.names.push_back(target);
    }
  }
  std::sort(group.names.begin(), group.names.end());
}

std::vector<QuantizationGroup> read_groups(const json::JsonNode& groups) {
  std::vector<QuantizationGroup> out;
  for (const auto& [name, value] : groups.object().items()) {
    const json::JsonNode node = groups[name.c_str()];
    if (node["weights"].is_null()) continue;  // quantizes activations or the KV cache only
    QuantizationGroup group;
    group.name = name;
    read_scheme(node["weights"], group);
    read_targets(node["targets"], group);
    out.push_back(std::move(group));
  }
  return out;
}

/// `expert_dtype` is a member of the configuration in some releases and of its quantization block
/// in others.
void merge_expert_dtype(const json::JsonNode& parent, std::string& known) {
  const json::JsonNode node = parent["expert_dtype"];
  if (node.is_null()) return;
  if (!known.empty() && node.string() != known) {
    node.bad(fmt::format("\"{}\" contradicts \"{}\" elsewhere in the file",
                         printable(node.string()), printable(known)));
  }
  known = node.string();
}

/// The fp8 dialect; DeepSeek writes "e4m3" for e4m3fn.
void check_dialect(const json::JsonNode& fmt_node) {
  if (fmt_node.is_null()) return;
  const std::string& name = fmt_node.string();
  if (name != "e4m3" && name != "e4m3fn" && name != "float8_e4m3fn") {
    fmt_node.unsupported(fmt::format("\"{}\", expected \"e4m3\"", printable(name)));
  }
}

}  // namespace

QuantizationConfig QuantizationConfig::read(const std::filesystem::path& directory) {
  QuantizationConfig config;
  const std::filesystem::path path = directory / "config.json";
  std::error_code ignored;
  if (std::filesystem::status(path, ignored).type() == std::filesystem::file_type::not_found) {
    return config;
  }
  const std::string file = path.string();
  const json::Json json = json::parse_json(json::read_file(path), file);
  const json::JsonNode top(json, file);
  const json::JsonNode inner = top["text_config"];
  json::JsonNode block = top["quantization_config"];
  if (block.is_null() && !inner.is_null()) block = inner["quantization_config"];
  if (block.is_null()) return config;

  const std::string& method = block["quant_method"].string();
  if (method == "fp8") {
    config.method_ = Method::kFp8;
    check_dialect(block["fmt"]);
    const json::JsonNode size = block["weight_block_size"];
    if (!size.is_null()) config.block_ = read_block(size);
    merge_expert_dtype(block, config.expert_dtype_);
    merge_expert_dtype(top, config.expert_dtype_);
    if (!inner.is_null()) merge_expert_dtype(inner, config.expert_dtype_);
  } else if (method == "compressed-tensors") {
    config.method_ = Method::kCompressedTensors;
    config.groups_ = read_groups(block["config_groups"]);
  } else {
    block["quant_method"].unsupported(fmt::format(
        "quantization method \"{}\" is not supported, expected \"fp8\" or \"compressed-tensors\"",
        printable(method)));
  }
  return config;
}

const QuantizationGroup* QuantizationConfig::group_of(std::string_view module) const {
  for (const QuantizationGroup& group : groups_) {
    if (std::binary_search(group.names.begin(), group.names.end(), module)) return &group;
  }
  for (const QuantizationGroup& group : groups_) {
    for (const ModulePattern& pattern : group.patterns) {
      if (pattern.starts(module)) return &group;
    }
  }
  for (const QuantizationGroup& group : groups_) {
    if (group.all_linear) return &group;
  }
  return nullptr;
}

}  // namespace deepinfer::models
