// Pairing codes with scales. A one-byte tensor does not say what it holds: I8 and U8 are
// containers, and the same scale bytes are written under four names and five data types. So nothing
// is guessed from one sign alone: configuration, name, data type and the shape of the scales must
// agree.
#include "deepinfer/weight_map.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <span>

#include "checkpoint/message.h"
#include "deepinfer/error.h"
#include "models/quantization_config.h"

namespace deepinfer {
namespace {

using checkpoint::printable;
using models::BlockShape;
using models::QuantizationConfig;
using models::QuantizationGroup;
using Method = QuantizationConfig::Method;

constexpr std::string_view kWeight = ".weight";
constexpr std::string_view kPacked = ".weight_packed";
constexpr std::array<std::string_view, 3> kScaleNames = {".weight_scale_inv", ".weight_scale",
                                                         ".scale"};
constexpr std::array<std::string_view, 1> kPackedScaleNames = {".weight_scale"};
constexpr std::array<std::string_view, 2> kSecondScaleNames = {".weight_scale_2",
                                                               ".weight_global_scale"};
constexpr BlockShape kRowBlock = {1, 32};
constexpr std::array<BlockShape, 3> kKnownBlocks = {{{32, 32}, {128, 128}, kRowBlock}};

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

std::string name_of(BlockShape block) { return fmt::format("{} x {}", block.n, block.k); }

/// The part in front of `suffix`, or nothing.
std::optional<std::string> without(std::string_view name, std::string_view suffix) {
  if (!name.ends_with(suffix) || name.size() == suffix.size()) return std::nullopt;
  return std::string(name.substr(0, name.size() - suffix.size()));
}

std::optional<ScaleType> scale_type_of(DType dtype) {
  switch (dtype) {
    case DType::kF8E8m0:
    case DType::kU8:
      return ScaleType::kE8m0;
    case DType::kF32:
      return ScaleType::kF32;
    case DType::kBf16:
      return ScaleType::kBf16;
    case DType::kF16:
      return ScaleType::kF16;
    default:
      return std::nullopt;
  }
}

/// Whether a tensor with a scale's name is one. Some models call their norms `.scale`.
bool is_scale(const Tensor& tensor) {
  if (!tensor.name.ends_with(".scale")) return true;
  return tensor.view.shape.size() == 2 || dtype_bits(tensor.view.dtype) <= 8;
}

/// Thrown and caught inside of this file: why a tensor cannot be used.
struct Refusal {
  std::string reason;
};

[[noreturn]] void refuse(std::string reason) { throw Refusal{std::move(reason)}; }

class Mapper {
 public:
  explicit Mapper(const Checkpoint& checkpoint)
      : checkpoint_(checkpoint), config_(QuantizationConfig::read(checkpoint.directory())) {}

  std::vector<MappedWeight> weights;
  std::vector<MapProblem> problems;

  void map_all() {
    for (const Tensor& tensor : checkpoint_.tensors()) {
      try {
        map(tensor);
      } catch (const Refusal& refusal) {
        problems.push_back({tensor.name, refusal.reason});
      }
    }
    for (const Tensor& tensor : checkpoint_.tensors()) report_leftover(tensor);
    const auto by_name = [](const auto& a, const auto& b) { return a.name < b.name; };
    std::sort(weights.begin(), weights.end(), by_name);
    std::sort(problems.begin(), problems.end(),
              [](const auto& a, const auto& b) { return a.tensor < b.tensor; });
  }

 private:
  void map(const Tensor& tensor) {
    if (const auto packed = without(tensor.name, kPacked)) return map_packed(*packed, tensor);
    const auto module = without(tensor.name, kWeight);
    if (!module) return;
    claimed_.insert(tensor.name);
    switch (tensor.view.dtype) {
      case DType::kBf16:
        return map_bf16(*module, tensor);
      case DType::kF8E4m3:
        return map_fp8(*module, tensor);
      case DType::kI8:
        return map_expert(*module, tensor);
      default:
        if (dtype_bits(tensor.view.dtype) > 8) return;  // a plain tensor
        refuse(
            fmt::format("data type {} is not known for a weight, expected BF16, F8_E4M3, or I8 "
                        "for fp4 experts",
                        dtype_name(tensor.view.dtype)));
    }
  }

  void map_bf16(const std::string& module, const Tensor& tensor) {
    if (tensor.view.shape.size() != 2) return;  // a norm
    for (std::string_view suffix : kScaleNames) {
      const Tensor* scales = checkpoint_.find(module + std::string(suffix));
      if (scales == nullptr || !is_scale(*scales)) continue;
      claimed_.insert(scales->name);
      refuse(
          fmt::format("data type BF16 takes no scales, but there is {}", printable(scales->name)));
    }
    MappedWeight weight = start(module, "bf16", Element::kBf16, tensor);
    weight.view.k = tensor.view.shape[1];
    weights.push_back(std::move(weight));
  }

  void map_fp8(const std::string& module, const Tensor& tensor) {
    const Tensor& scales = companion(module, kScaleNames, tensor);
    check_matrix(tensor);
    MappedWeight weight = start(module, "", Element::kE4m3fn, tensor);
    weight.view.k = tensor.view.shape[1];
    const BlockShape block = fp8_block(module, weight.view, scales);
    attach(weight, scales, block);
    const bool mx = block == kRowBlock && weight.view.scale_type == ScaleType::kE8m0;
    weight.format = mx ? "mxfp8" : fmt::format("fp8-{}x{}", block.n, block.k);
    weights.push_back(std::move(weight));
  }

  /// DeepSeek-V4: experts in I8, because of `expert_dtype`.
  void map_expert(const std::string& module, const Tensor& tensor) {
    const Tensor& scales = companion(module, kScaleNames, tensor);
    check_matrix(tensor);
    if (config_.method() != Method::kFp8 || config_.expert_dtype() != "fp4") {
      const std::string& found = config_.expert_dtype();
      refuse(
          fmt::format("data type I8 holds fp4 only where config.json says quant_method \"fp8\" "
                      "and expert_dtype \"fp4\", found {}",
                      found.empty() ? "none" : fmt::format("\"{}\"", printable(found))));
    }
    if (module.find(".experts.") == std::string::npos) {
      refuse("data type I8 holds fp4 only in experts, but the name has no \".experts.\"");
    }
    add_fp4(module, tensor, scales);
  }

  /// compressed-tensors: `weight_packed`.
  void map_packed(const std::string& module, const Tensor& tensor) {
    claimed_.insert(tensor.name);
    if (tensor.view.dtype != DType::kU8) {
      refuse(fmt::format("data type {} is not known for packed codes, expected U8 for mxfp4",
                         dtype_name(tensor.view.dtype)));
    }
    const Tensor& scales = companion(module, kPackedScaleNames, tensor);
    check_matrix(tensor);
    if (checkpoint_.find(module + std::string(kWeight)) != nullptr) {
      refuse(fmt::format("there is also {}{}", printable(module), kWeight));
    }
    if (config_.method() == Method::kFp8) {
      refuse("packed codes, but config.json says quant_method \"fp8\"");
    }
    if (config_.method() == Method::kCompressedTensors) group_with_bits(module, 4);
    add_fp4(module, tensor, scales);
  }

  void add_fp4(const std::string& module, const Tensor& tensor, const Tensor& scales) {
    MappedWeight weight = start(module, "mxfp4", Element::kE2m1, tensor);
    weight.view.k = 2 * tensor.view.shape[1];
    if (scale_type_of(scales.view.dtype) != ScaleType::kE8m0) {
      refuse(fmt::format("{} has data type {}, expected F8_E8M0 or U8", printable(scales.name),
                         dtype_name(scales.view.dtype)));
    }
    attach(weight, scales, kRowBlock);
    weights.push_back(std::move(weight));
  }

  static MappedWeight start(const std::string& module, const char* format, Element element,
                            const Tensor& tensor) {
    MappedWeight weight;
    weight.name = module;
    weight.format = format;
    weight.codes = &tensor;
    weight.view.element = element;
    weight.view.codes = tensor.view.data;
    weight.view.n = tensor.view.shape[0];
    return weight;
  }

  static void check_matrix(const Tensor& tensor) {
    if (tensor.view.shape.size() == 2) return;
    refuse(fmt::format("shape {} is not that of a matrix", shape_string(tensor.view.shape)));
  }

  /// The one tensor of scales that goes with the codes.
  const Tensor& companion(const std::string& module, std::span<const std::string_view> suffixes,
                          const Tensor& codes) {
    const Tensor* found = nullptr;
    std::string tried;
    for (std::string_view suffix : suffixes) {
      const std::string name = module + std::string(suffix);
      tried += (tried.empty() ? "" : ", ") + printable(name);
      const Tensor* tensor = checkpoint_.find(name);
      if (tensor == nullptr) continue;
      claimed_.insert(name);
      if (found != nullptr) {
        refuse(fmt::format("scales under two names: {} and {}", printable(found->name),
                           printable(name)));
      }
      found = tensor;
    }
    if (found == nullptr) {
      refuse(fmt::format("data type {} needs scales, found none (tried {})",
                         dtype_name(codes.view.dtype), tried));
    }
    return *found;
  }

  BlockShape fp8_block(const std::string& module, const WeightView& view, const Tensor& scales) {
    if (config_.method() == Method::kCompressedTensors) return group_with_bits(module, 8).block;
    if (config_.block()) return *config_.block();
    std::vector<BlockShape> fitting;
    for (BlockShape block : kKnownBlocks) {
      if (scales.view.shape == grid(view, block)) fitting.push_back(block);
    }
    if (fitting.size() == 1) return fitting.front();
    std::string names;
    for (BlockShape block : fitting.empty() ? std::span<const BlockShape>(kKnownBlocks) : fitting) {
      names += (names.empty() ? "" : ", ") + name_of(block);
    }
    refuse(
        fmt::format("scale {} of {} fits {} blocks of {} for [{}, {}], and config.json names no "
                    "block size",
                    printable(scales.name), shape_string(scales.view.shape),
                    fitting.empty() ? "none of the" : "each of the", names, view.n, view.k));
  }

  const QuantizationGroup& group_with_bits(const std::string& module, int bits) {
    const QuantizationGroup* group = config_.group_of(module);
    if (group == nullptr) refuse("config.json has no group in config_groups for it");
    const std::string name = printable(group->name);
    if (!group->unsupported.empty()) {
      refuse(fmt::format("group {} of config.json is not supported: {}", name, group->unsupported));
    }
    if (group->bits != bits) {
      refuse(fmt::format("codes of {} bits, but group {} of config.json says num_bits {}", bits,
                         name, group->bits));
    }
    return *group;
  }

  static std::vector<std::int64_t> grid(const WeightView& view, BlockShape block) {
    return {ceil_div(view.n, block.n), ceil_div(view.k, block.k)};
  }

  static void attach(MappedWeight& weight, const Tensor& scales, BlockShape block) {
    WeightView& view = weight.view;
    const auto type = scale_type_of(scales.view.dtype);
    if (!type) {
      refuse(fmt::format("{} has data type {}, expected F8_E8M0, U8, F32, BF16 or F16",
                         printable(scales.name), dtype_name(scales.view.dtype)));
    }
    if (block.k % kRowBlock.k != 0 && block.k < view.k) {
      refuse(fmt::format("blocks of {} are not supported: their columns must be a multiple of {}",
                         name_of(block), kRowBlock.k));
    }
    const std::vector<std::int64_t> expected = grid(view, block);
    if (scales.view.shape != expected) {
      refuse(fmt::format("{} for [{}, {}] in blocks of {}: expected {}, found {}",
                         printable(scales.name), view.n, view.k, name_of(block),
                         shape_string(expected), shape_string(scales.view.shape)));
    }
    view.scale_type = *type;
    view.scales = scales.view.data;
    view.scale_rows = expected[0];
    view.scale_columns = expected[1];
    view.block_n = block.n;
    view.block_k = block.k;
    weight.scales = &scales;
  }

  /// Scales that no weight asked for, and bytes whose meaning is not known.
  void report_leftover(const Tensor& tensor) {
    if (claimed_.count(tensor.name) != 0) return;
    for (std::string_view suffix : kScaleNames) {
      const auto module = without(tensor.name, suffix);
      if (!module || !is_scale(tensor)) continue;
      problems.push_back(
          {tensor.name,
           fmt::format("scales without a weight that takes them (looked for {0}.weight "
                       "as F8_E4M3 or I8, and {0}.weight_packed)",
                       printable(*module))});
      return;
    }
    for (std::string_view suffix : kSecondScaleNames) {
      if (!tensor.name.ends_with(suffix)) continue;
      problems.push_back({tensor.name, "a second scale (NVFP4) is not supported"});
      return;
    }
    if (dtype_bits(tensor.view.dtype) <= 8 && tensor.view.dtype != DType::kBool) {
      problems.push_back({tensor.name, fmt::format("data type {} under a name that is not known",
                                                   dtype_name(tensor.view.dtype))});
    }
  }

  const Checkpoint& checkpoint_;
  QuantizationConfig config_;
  std::set<std::string, std::less<>> claimed_;
};

}  // namespace

WeightMap WeightMap::build(const Checkpoint& checkpoint) {
  Mapper mapper(checkpoint);
  mapper.map_all();
  WeightMap map;
  map.weights_ = std::move(mapper.weights);
  map.problems_ = std::move(mapper.problems);
  return map;
}

const MappedWeight* WeightMap::find(std::string_view name) const noexcept {
  const auto place = std::lower_bound(
      weights_.begin(), weights_.end(), name,
      [](const MappedWeight& weight, std::string_view wanted) { return weight.name < wanted; });
  return place != weights_.end() && place->name == name ? &*place : nullptr;
}

const MappedWeight& WeightMap::at(std::string_view name) const {
  const MappedWeight* weight = find(name);
  if (weight != nullptr) return *weight;
  for (const MapProblem& problem : problems_) {
    if (problem.tensor.substr(0, problem.tensor.rfind('.')) != name) continue;
    throw Error(ErrorCode::kBadInput,
                fmt::format("{}: {}", checkpoint::tensor_label(problem.tensor), problem.reason));
  }
  throw Error(ErrorCode::kBadInput,
              fmt::format("weight \"{0}\": not found among {1}, expected {0}.weight as BF16 or "
                          "F8_E4M3, or {0}.weight_packed",
                          printable(name), checkpoint::count_label(weights_.size(), "weight")));
}

}  // namespace deepinfer
