#include "models/quantize_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "checkpoint/message.h"
#include "deepinfer/error.h"
#include "json/json_node.h"
#include "models/module_pattern.h"

namespace deepinfer::models {
namespace {

using checkpoint::printable;
using checkpoint::tensor_label;

constexpr std::string_view kWeight = ".weight";

weights::BlockFormat e4m3fn_block(std::int64_t n, std::int64_t k) {
  return {.element = Element::kE4m3fn, .block_n = n, .block_k = k, .limit = formats::kLimit448};
}

[[noreturn]] void refuse_usage(const std::string& message) {
  throw Error(ErrorCode::kInvalidArgument, message);
}

const TargetFormat& format_named(const std::string& name) {
  for (const TargetFormat& format : target_formats()) {
    if (format.name == name) return format;
  }
  std::string known;
  for (const TargetFormat& format : target_formats()) known += std::string(" ") + format.name;
  refuse_usage(
      fmt::format("format \"{}\" is not known, expected one of:{}", printable(name), known));
}

/// The last part of a module name: "model.layers.0.mlp.gate" is a "gate".
std::string_view last_part(std::string_view module) {
  return module.substr(module.rfind('.') + 1);  // npos + 1 is 0
}

/// Matrices that are named `.weight` but are no linear layers, or linear layers that every
/// published quantized checkpoint leaves alone: embedding, head, norms, routers.
bool is_left_alone(std::string_view module) {
  const std::string_view part = last_part(module);
  for (std::string_view word : {"embed", "norm", "router"}) {
    if (part.find(word) != std::string_view::npos) return true;
  }
  for (std::string_view word : {"lm_head", "head", "wte", "wpe", "gate", "shared_expert_gate"}) {
    if (part == word) return true;
  }
  return false;
}

bool is_number(DType dtype) {
  return dtype == DType::kBf16 || dtype == DType::kF16 || dtype == DType::kF32;
}

/// The module of a linear weight that can be quantized, or nothing.
std::optional<std::string> linear_module(const Tensor& tensor) {
  const std::string_view name = tensor.name;
  if (!name.ends_with(kWeight) || tensor.view.shape.size() != 2) return std::nullopt;
  if (!is_number(tensor.view.dtype)) return std::nullopt;
  const std::string_view module = name.substr(0, name.size() - kWeight.size());
  if (is_left_alone(module)) return std::nullopt;
  return std::string(module);
}

/// The formats of modules, by the rules in their order.
class Rules {
 public:
  explicit Rules(const QuantizeOptions& options) : fallback_(&format_named(options.format)) {
    for (const FormatRule& rule : options.rules) {
      try {
        rules_.push_back({ModulePattern(rule.pattern, fmt::format("rule \"{}\"", rule.pattern)),
                          &format_named(rule.format), rule.pattern});
      } catch (const Error& error) {
        refuse_usage(error.what());  // a pattern of the caller, not of a file
      }
    }
  }

  const TargetFormat& format_of(const std::string& module) {
    for (Rule& rule : rules_) {
      if (!rule.pattern.found_in(module)) continue;
      rule.used = true;
      return *rule.format;
    }
    return *fallback_;
  }

  /// A rule that does nothing is a mistake that nobody would notice in the output.
  void check_all_used() const {
    for (const Rule& rule : rules_) {
      if (rule.used) continue;
      refuse_usage(
          fmt::format("rule \"{}\" matches no linear weight, or only ones that an earlier "
                      "rule takes",
                      printable(rule.text)));
    }
  }

 private:
  struct Rule {
    ModulePattern pattern;
    const TargetFormat* format;
    std::string text;
    bool used = false;
  };
  std::vector<Rule> rules_;
  const TargetFormat* fallback_;
};

nlohmann::ordered_json read_config(const Checkpoint& checkpoint) {
  const std::filesystem::path path = checkpoint.directory() / "config.json";
  std::error_code ignored;  // a config.json that cannot be looked at cannot be read either
  if (std::filesystem::status(path, ignored).type() == std::filesystem::file_type::not_found) {
    return nlohmann::ordered_json::object();
  }
  const std::string bytes = json::read_file(path);
  const nlohmann::json checked = json::parse_json(bytes, path.string());
  if (!checked.is_object()) {
    throw Error(ErrorCode::kBadInput, path.string() + ": expected an object");
  }
  for (const nlohmann::json& place : {checked, checked.value("text_config", nlohmann::json())}) {
    if (!place.is_object() || !place.contains("quantization_config")) continue;
    const nlohmann::json& block = place["quantization_config"];
    if (block.is_null()) continue;
    const auto method =
        block.is_object() ? block.value("quant_method", nlohmann::json()) : nlohmann::json();
    throw Error(ErrorCode::kUnsupported,
                fmt::format("{}: the checkpoint is quantized already (quant_method {}): expected "
                            "bf16, f16 or f32 weights",
                            path.string(), printable(method.dump())));
  }
  return nlohmann::ordered_json::parse(bytes);
}

void check_not_quantized(const Tensor& tensor) {
  const DType dtype = tensor.view.dtype;
  if (dtype_bits(dtype) > 8 || dtype == DType::kBool) return;
  throw Error(ErrorCode::kUnsupported,
              fmt::format("{}: {} has data type {}: the checkpoint is quantized already, expected "
                          "bf16, f16 or f32 weights",
                          tensor.file.string(), tensor_label(tensor.name), dtype_name(dtype)));
}

/// Names, types and shapes of a quantized weight in the output.
void plan_output(const Checkpoint& checkpoint, bool compressed_tensors, PlannedTensor& planned) {
  const TargetFormat& format = *planned.format;
  const std::int64_t n = planned.source->view.shape[0];
  const std::int64_t k = planned.source->view.shape[1];
  const auto blocks = [](std::int64_t side, std::int64_t block) {
    return side / block + (side % block != 0 ? 1 : 0);
  };
  const bool packed = format.block.element == Element::kE2m1;
  if (packed && k % 2 != 0) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("{}: {} holds two codes in a byte, so k must be even, found {}",
                            tensor_label(planned.source->name), format.name,
                            shape_string(planned.source->view.shape)));
  }
  planned.codes.name = planned.module + (packed ? ".weight_packed" : ".weight");
  planned.codes.dtype = packed ? DType::kU8 : DType::kF8E4m3;
  planned.codes.shape = {n, packed ? k / 2 : k};
  planned.scales.name =
      planned.module + (compressed_tensors ? ".weight_scale" : ".weight_scale_inv");
  // compressed-tensors keeps the scales of MX formats in U8; those of fp8 blocks it multiplies in
  // as numbers, and version 0.20 gets F8_E8M0 wrong there, so they are BF16 (powers of two: exact).
  planned.scales.dtype = !compressed_tensors ? DType::kF8E8m0
                         : format.is_fp8     ? DType::kBf16
                                             : DType::kU8;
  planned.scales.shape = {blocks(n, format.block.block_n), blocks(k, format.block.block_k)};
  for (const std::string* name : {&planned.codes.name, &planned.scales.name}) {
    if (*name == planned.source->name || checkpoint.find(*name) == nullptr) continue;
    throw Error(ErrorCode::kUnsupported,
                fmt::format("{}: the source has a tensor of this name, which the output needs",
                            tensor_label(*name)));
  }
}

}  // namespace

const std::vector<TargetFormat>& target_formats() {
  static const std::vector<TargetFormat> formats = {
      {"bf16", {.element = Element::kBf16}, false, ""},
      {"fp8-32x32", e4m3fn_block(32, 32), true, "float-quantized"},
      {"fp8-128x128", e4m3fn_block(128, 128), true, "float-quantized"},
      {"mxfp8", e4m3fn_block(1, 32), false, "mxfp8-quantized"},
      {"mxfp4",
       {.element = Element::kE2m1, .block_n = 1, .block_k = 32, .limit = formats::kLimit6},
       false,
       "mxfp4-pack-quantized"},
  };
  return formats;
}

void check_options(const QuantizeOptions& options) { const Rules rules(options); }

QuantizePlan plan_quantization(const Checkpoint& checkpoint, const QuantizeOptions& options) {
  Rules rules(options);
  QuantizePlan plan;
  plan.config = read_config(checkpoint);
  const TargetFormat* seen = nullptr;
  for (const Tensor& tensor : checkpoint.tensors()) {
    check_not_quantized(tensor);
    PlannedTensor planned;
    planned.source = &tensor;
    planned.codes = {tensor.name, tensor.view.dtype, tensor.view.shape};
    if (const auto module = linear_module(tensor)) {
      planned.module = *module;
      planned.format = &rules.format_of(*module);
      planned.copied =
          planned.format->block.element == Element::kBf16 && tensor.view.dtype == DType::kBf16;
      if (planned.format->block.element != Element::kBf16) {
        plan.compressed_tensors |= !planned.format->is_fp8 || (seen && seen != planned.format);
        seen = planned.format;
      }
    }
    plan.tensors.push_back(std::move(planned));
  }
  rules.check_all_used();
  for (PlannedTensor& planned : plan.tensors) {
    if (planned.copied) continue;
    if (planned.format->block.element == Element::kBf16) {
      planned.codes.dtype = DType::kBf16;
    } else {
      plan_output(checkpoint, plan.compressed_tensors, planned);
    }
  }
  return plan;
}

}  // namespace deepinfer::models
