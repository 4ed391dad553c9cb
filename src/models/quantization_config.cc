#include "models/quantization_config.h"

#include <fmt/format.h>

#include <algorithm>

#include "checkpoint/message.h"

namespace deepinfer::models {
namespace {

using checkpoint::printable;

constexpr std::int64_t kLargestBlock = std::int64_t{1} << 31;

struct MethodName {
  std::string_view name;
  Method method;
};
constexpr MethodName kMethods[] = {{"fp8", Method::kFp8},
                                   {"mxfp4", Method::kMxfp4},
                                   {"compressed-tensors", Method::kCompressedTensors},
                                   {"modelopt", Method::kModelOpt},
                                   {"quark", Method::kQuark}};

Method read_method(const json::JsonNode& node) {
  std::string known;
  for (const MethodName& row : kMethods) {
    if (node.string() == row.name) return row.method;
    known += fmt::format("{}\"{}\"", known.empty() ? "" : ", ", row.name);
  }
  node.unsupported(fmt::format("quantization method \"{}\" is not supported, expected one of {}",
                               printable(node.string()), known));
}

bool is_there(const std::filesystem::path& file) {
  std::error_code ignored;  // other faults are reported by reading it
  return std::filesystem::status(file, ignored).type() != std::filesystem::file_type::not_found;
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

/// quant_method "fp8": one block size for all, and a word about experts.
void read_fp8(const json::JsonNode& block, const std::string& expert_dtype, Rules& rules) {
  Statement& otherwise = rules.otherwise;
  check_dialect(block["fmt"]);
  otherwise.words =
      fmt::format("quant_method \"fp8\", expert_dtype {}",
                  expert_dtype.empty() ? "none" : fmt::format("\"{}\"", printable(expert_dtype)));
  otherwise.element = Element::kE4m3fn;
  const json::JsonNode size = block["weight_block_size"];
  const json::JsonNode scheme = block["activation_scheme"];
  if (!size.is_null()) {
    otherwise.block = read_block_shape(size);
    otherwise.grids = {Grid::kBlock, Grid::kRow32};
  } else if (!scheme.is_null() && scheme.string() == "static") {
    otherwise.grids = {Grid::kTensor};
  } else {
    otherwise.grids = {Grid::kBlock, Grid::kRow32, Grid::kTensor};
  }
  if (expert_dtype.empty() || expert_dtype == "fp8") return;
  Rule experts;
  experts.part = ".experts.";
  experts.statement.words = otherwise.words;
  if (expert_dtype == "fp4") {
    experts.statement.element = Element::kE2m1;
    experts.statement.grids = {Grid::kRow32};
  } else {
    experts.statement.refused = fmt::format(
        "expert_dtype \"{}\" is not known, expected \"fp4\" "
        "or \"fp8\"",
        printable(expert_dtype));
  }
  rules.rules.push_back(std::move(experts));
}

}  // namespace

BlockShape read_block_shape(const json::JsonNode& node) {
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

bool Rule::fits(std::string_view module) const {
  if (all) return true;
  if (!part.empty() && module.find(part) != std::string_view::npos) return true;
  const auto starts = [&](const ModulePattern& pattern) { return pattern.starts(module); };
  return std::any_of(patterns.begin(), patterns.end(), starts);
}

void QuantizationConfig::read_block(const json::JsonNode& top, const json::JsonNode& inner,
                                    const json::JsonNode& block) {
  method_ = read_method(block["quant_method"]);
  std::string expert_dtype;
  switch (method_) {
    case Method::kNone:
      break;
    case Method::kFp8:
      merge_expert_dtype(block, expert_dtype);
      merge_expert_dtype(top, expert_dtype);
      if (!inner.is_null()) merge_expert_dtype(inner, expert_dtype);
      read_fp8(block, expert_dtype, rules_);
      break;
    case Method::kMxfp4:
      rules_.otherwise.words = "quant_method \"mxfp4\"";
      rules_.otherwise.element = Element::kE2m1;
      rules_.otherwise.grids = {Grid::kRow32};
      break;
    case Method::kCompressedTensors:
      read_compressed_tensors(block, rules_);
      break;
    case Method::kModelOpt:
      read_modelopt(block, rules_.otherwise);
      break;
    case Method::kQuark:
      read_quark(block, rules_);
      break;
  }
}

/// ModelOpt writes the same facts into a file of its own, alone or beside config.json.
void QuantizationConfig::read_side_file(const std::filesystem::path& file) {
  const std::string name = file.string();
  const json::Json json = json::parse_json(json::read_file(file), name);
  const json::JsonNode block = json::JsonNode(json, name)["quantization"];
  if (block.is_null()) return;
  Statement side;
  read_modelopt(block, side);
  if (method_ == Method::kNone) {
    method_ = Method::kModelOpt;
    rules_.otherwise = std::move(side);
  } else if (method_ != Method::kModelOpt || side.words != rules_.otherwise.words) {
    block.bad(fmt::format("{} contradicts config.json, which says {}", side.words,
                          rules_.otherwise.words));
  }
}

QuantizationConfig QuantizationConfig::parse(std::string_view text, const std::string& file) {
  QuantizationConfig config;
  config.rules_.otherwise.words = "nothing about quantization";
  const json::Json json = json::parse_json(text, file);
  const json::JsonNode top(json, file);
  const json::JsonNode inner = top["text_config"];
  json::JsonNode block = top["quantization_config"];
  if (block.is_null() && !inner.is_null()) block = inner["quantization_config"];
  if (!block.is_null()) config.read_block(top, inner, block);
  return config;
}

QuantizationConfig QuantizationConfig::read(const std::filesystem::path& directory) {
  const std::filesystem::path file = directory / "config.json";
  const std::string name = file.string();
  QuantizationConfig config = parse(is_there(file) ? json::read_file(file) : "{}", name);
  const std::filesystem::path side_file = directory / "hf_quant_config.json";
  if (is_there(side_file)) config.read_side_file(side_file);
  return config;
}

const Statement& QuantizationConfig::about(std::string_view module) const {
  const auto named = rules_.by_name.find(module);
  if (named != rules_.by_name.end()) return named->second;
  for (const Rule& rule : rules_.rules) {
    if (rule.fits(module)) return rule.statement;
  }
  return rules_.otherwise;
}

}  // namespace deepinfer::models
