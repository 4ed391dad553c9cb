// compressed-tensors, ModelOpt and Quark: three ways of saying what fp8 and fp4 weights are.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <iterator>

#include "checkpoint/message.h"
#include "models/quantization_config.h"

namespace deepinfer::models {
namespace {

using checkpoint::printable;

// Sizes of groups along k, as the formats define them.
constexpr std::int64_t kMxGroup = 32;
constexpr std::int64_t kNvGroup = 16;

void say(Statement& statement, Element element, Grid grid) {
  statement.element = element;
  statement.grids = {grid};
}

// compressed-tensors --------------------------------------------------------------------------

/// A combination of strategy, bits and group size that is known.
struct Scheme {
  std::string_view strategy;
  std::int64_t bits;
  std::int64_t group_size;  // 0: has none
  Element element;
  Grid grid;
};
constexpr Scheme kSchemes[] = {
    {"block", 8, 0, Element::kE4m3fn, Grid::kBlock},
    {"channel", 8, 0, Element::kE4m3fn, Grid::kChannel},
    {"tensor", 8, 0, Element::kE4m3fn, Grid::kTensor},
    {"group", 8, kMxGroup, Element::kE4m3fn, Grid::kRow32},
    {"group", 4, kMxGroup, Element::kE2m1, Grid::kRow32},
    {"tensor_group", 4, kNvGroup, Element::kE2m1, Grid::kRow16},
};

/// `format` of the block or of a group, where it fixes bits and group size.
struct PackFormat {
  std::string_view name;
  std::int64_t bits;
  std::int64_t group_size;  // 0: any
};
constexpr PackFormat kPackFormats[] = {{"float-quantized", 8, 0},
                                       {"naive-quantized", 8, 0},
                                       {"mxfp8-quantized", 8, kMxGroup},
                                       {"mxfp4-pack-quantized", 4, kMxGroup},
                                       {"nvfp4-pack-quantized", 4, kNvGroup}};

/// Members that say how a quantized value is more than code * scale.
std::string why_unsupported(const json::JsonNode& weights) {
  const json::JsonNode symmetric = weights["symmetric"];
  if (!symmetric.is_null() && !symmetric.boolean()) return "symmetric is false";
  if (!weights["actorder"].is_null()) return "actorder is set";
  const std::string& type = weights["type"].string();
  if (type != "float") return fmt::format("type is \"{}\"", printable(type));
  return "";
}

std::string contradiction(const json::JsonNode& format, std::int64_t bits, std::int64_t size) {
  if (format.is_null()) return "";
  for (const PackFormat& row : kPackFormats) {
    if (format.string() != row.name) continue;
    if (row.bits == bits && (row.group_size == 0 || row.group_size == size)) return "";
    return fmt::format("format \"{}\" contradicts num_bits {}, group_size {}", row.name, bits,
                       size);
  }
  return "";  // "mixed-precision", or one that fp4 and fp8 never have
}

/// Element, grid and block of a group, or why it cannot be used.
void read_scheme(const json::JsonNode& weights, const json::JsonNode& format,
                 Statement& statement) {
  std::string why = why_unsupported(weights);
  const std::int64_t bits = why.empty() ? weights["num_bits"].integer() : 0;
  const std::string strategy = why.empty() ? weights["strategy"].string() : "";
  const json::JsonNode size_node = weights["group_size"];
  const std::int64_t size = why.empty() && !size_node.is_null() ? size_node.integer() : 0;
  if (why.empty()) why = contradiction(format, bits, size);
  if (why.empty()) {
    const auto known = std::find_if(std::begin(kSchemes), std::end(kSchemes), [&](const auto& row) {
      return row.strategy == strategy && row.bits == bits &&
             (row.group_size == 0 || row.group_size == size);
    });
    if (known == std::end(kSchemes)) {
      why = fmt::format("strategy \"{}\" with {} bits, group_size {}", printable(strategy), bits,
                        size);
    } else {
      say(statement, known->element, known->grid);
      if (known->grid == Grid::kBlock) {
        statement.block = read_block_shape(weights["block_structure"]);
      }
      statement.words += fmt::format(" with num_bits {}, strategy \"{}\"", bits, strategy);
    }
  }
  if (!why.empty())
    statement.refused = fmt::format("{} is not supported: {}", statement.words, why);
}

/// The targets of a group: names, patterns, the class of all linear layers.
struct Targets {
  std::vector<std::string> names;
  std::vector<ModulePattern> patterns;
  bool all_linear = false;
};

Targets read_targets(const json::JsonNode& targets) {
  constexpr std::string_view kPatternMark = "re:";
  Targets out;
  for (std::size_t i = 0; i < targets.array().size(); ++i) {
    const std::string& target = targets[i].string();
    if (target.starts_with(kPatternMark)) {
      out.patterns.emplace_back(std::string_view(target).substr(kPatternMark.size()),
                                targets[i].where());
    } else if (target == "Linear") {
      out.all_linear = true;
    } else {
      out.names.push_back(target);
    }
  }
  return out;
}

// Quark ---------------------------------------------------------------------------------------

/// Quark's weights: only the fp4 form is described well enough to be read.
void read_quark_weight(const json::JsonNode& weight, const std::string& where,
                       Statement& statement) {
  statement.words = fmt::format("quant_method \"quark\", {}", where);
  if (weight.is_null()) {
    statement.refused = fmt::format("{} says nothing about weights", statement.words);
    return;
  }
  const std::string& dtype = weight["dtype"].string();
  const json::JsonNode format = weight["scale_format"];
  const bool e8m0 = format.is_null() || format.string() == "e8m0";
  if (dtype == "fp4" && weight["qscheme"].string() == "per_group" &&
      weight["group_size"].integer() == kMxGroup && e8m0) {
    return say(statement, Element::kE2m1, Grid::kRow32);
  }
  statement.refused = fmt::format(
      "{}: dtype \"{}\" is not supported, expected \"fp4\" per_group with group_size 32 and e8m0 "
      "scales",
      statement.words, printable(dtype));
}

/// A shell pattern as a regular expression.
std::string regex_of(std::string_view glob) {
  std::string out;
  for (const char c : glob) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '*') {
      out += ".*";
    } else if (c == '?') {
      out += '.';
    } else if (std::isalnum(byte) != 0 || c == '_') {
      out += c;
    } else {
      out += fmt::format("\\x{{{:02x}}}", byte);
    }
  }
  return out + "$";
}

}  // namespace

void read_compressed_tensors(const json::JsonNode& block, Rules& rules) {
  Statement& otherwise = rules.otherwise;
  otherwise.words = "quant_method \"compressed-tensors\"";
  otherwise.refused = "config.json has no group in config_groups for it";
  const json::JsonNode transforms = block["transform_config"];
  if (transforms.value().is_object() && !transforms["config_groups"].is_null() &&
      !transforms["config_groups"].object().empty()) {
    transforms.unsupported("weights that were rotated are not supported");
  }
  std::vector<Rule> by_class;
  const json::JsonNode groups = block["config_groups"];
  for (const auto& [name, value] : groups.object().items()) {
    const json::JsonNode node = groups[name.c_str()];
    if (node["weights"].is_null()) continue;  // quantizes activations or the KV cache only
    Statement statement;
    statement.words = fmt::format("group {} of config.json", printable(name));
    const json::JsonNode own = node["format"];
    read_scheme(node["weights"], own.is_null() ? block["format"] : own, statement);
    Targets targets = read_targets(node["targets"]);
    for (std::string& module : targets.names) rules.by_name.try_emplace(module, statement);
    rules.rules.push_back({.patterns = std::move(targets.patterns), .statement = statement});
    by_class.push_back({.all = targets.all_linear, .statement = std::move(statement)});
  }
  std::move(by_class.begin(), by_class.end(), std::back_inserter(rules.rules));
}

void read_modelopt(const json::JsonNode& block, Statement& otherwise) {
  const json::JsonNode algo = block["quant_algo"];
  if (algo.is_null()) {
    otherwise.words = "quant_method \"modelopt\"";
    otherwise.refused = "config.json has quant_method \"modelopt\" without a quant_algo";
    return;
  }
  const std::string& name = algo.string();
  otherwise.words = fmt::format("quant_method \"modelopt\", quant_algo \"{}\"", printable(name));
  const json::JsonNode size_node = block["group_size"];
  const std::int64_t size = size_node.is_null() ? 0 : size_node.integer();
  if (name == "NVFP4" && (size == 0 || size == kNvGroup)) {
    say(otherwise, Element::kE2m1, Grid::kRow16);
  } else if (name == "MXFP8" && (size == 0 || size == kMxGroup)) {
    say(otherwise, Element::kE4m3fn, Grid::kRow32);
  } else {
    otherwise.refused = fmt::format(
        "{} with group_size {} is not supported, expected \"NVFP4\" with 16 or "
        "\"MXFP8\" with 32",
        otherwise.words, size);
  }
}

void read_quark(const json::JsonNode& block, Rules& rules) {
  read_quark_weight(block["global_quant_config"]["weight"], "global_quant_config", rules.otherwise);
  const json::JsonNode layers = block["layer_quant_config"];
  if (layers.is_null()) return;
  for (const auto& [name, value] : layers.object().items()) {
    const json::JsonNode node = layers[name.c_str()];
    Statement statement;
    read_quark_weight(node["weight"], fmt::format("layer_quant_config \"{}\"", printable(name)),
                      statement);
    if (name.find('[') != std::string::npos) node.unsupported("pattern with brackets");
    if (name.find_first_of("*?") == std::string::npos) {
      rules.by_name.try_emplace(name, std::move(statement));
    } else {
      rules.rules.push_back({.statement = std::move(statement)});
      rules.rules.back().patterns.emplace_back(regex_of(name), node.where());
    }
  }
}

}  // namespace deepinfer::models
