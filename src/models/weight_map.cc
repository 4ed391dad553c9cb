// Pairing codes with scales. A one-byte tensor does not say what it holds: I8 and U8 are
// containers, and the same scale bytes are written under many names and six data types. So nothing
// is guessed from one sign alone: configuration, name, data type and the shape of the scales must
// agree with one row of the table of layouts.
#include "deepinfer/weight_map.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>

#include "checkpoint/message.h"
#include "deepinfer/error.h"
#include "models/map_scales.h"

namespace deepinfer {
namespace {

using checkpoint::printable;
using models::Layout;
using models::QuantizationConfig;
using models::Refusal;
using models::refuse;
using models::Statement;

constexpr std::string_view kWeight = ".weight";
constexpr std::string_view kPacked = ".weight_packed";  // in any data type codes and nothing else

/// The names that go with one name of codes, each once.
struct CodeNames {
  std::string_view codes;
  std::vector<std::string_view> scales;
  std::vector<std::string_view> tensor_scales;
};

void add_once(std::vector<std::string_view>& list, std::string_view name) {
  if (name.empty() || std::find(list.begin(), list.end(), name) != list.end()) return;
  list.push_back(name);
}

std::vector<CodeNames> code_names() {
  std::vector<CodeNames> out;
  for (const Layout& row : models::layouts()) {
    auto place = std::find_if(out.begin(), out.end(), [&](const CodeNames& names) {
      return names.codes == row.codes.suffix;
    });
    if (place == out.end()) place = out.insert(place, {row.codes.suffix, {}, {}});
    for (std::string_view suffix : row.scales.suffixes) add_once(place->scales, suffix);
    add_once(place->tensor_scales, row.scales.tensor_suffix);
  }
  return out;
}

/// The part in front of `suffix`, or nothing.
std::optional<std::string_view> without(std::string_view name, std::string_view suffix) {
  if (!name.ends_with(suffix) || name.size() == suffix.size()) return std::nullopt;
  return name.substr(0, name.size() - suffix.size());
}

/// Whether a tensor with a scale's name is one. Some models call their norms `.scale`.
bool is_scale(const Tensor& tensor) {
  if (tensor.name.rfind(".weight_") != std::string::npos) return true;
  return tensor.view.shape.size() >= 2 || dtype_bits(tensor.view.dtype) <= 8;
}

class Mapper {
 public:
  Mapper(const Checkpoint& checkpoint, const MapOptions& options)
      : checkpoint_(checkpoint),
        config_(options.config_json ? QuantizationConfig::parse(*options.config_json, "config.json")
                                    : QuantizationConfig::read(checkpoint.directory())),
        claimed_(checkpoint.tensors().size(), false) {
    for (const Segmentation& segmentation : options.segmentations) {
      if (segmentation.rows < 1) {
        throw Error(ErrorCode::kInvalidArgument,
                    fmt::format("segmentation \"{}\": expected at least one row, found {}",
                                printable(segmentation.pattern), segmentation.rows));
      }
      const std::string where = fmt::format("segmentation \"{}\"", printable(segmentation.pattern));
      segments_.push_back({models::ModulePattern(segmentation.pattern, where), segmentation.rows});
    }
  }

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
    std::sort(weights.begin(), weights.end(),
              [](const auto& a, const auto& b) { return a.name < b.name; });
    std::sort(problems.begin(), problems.end(),
              [](const auto& a, const auto& b) { return a.tensor < b.tensor; });
  }

 private:
  struct Segments {
    models::ModulePattern pattern;
    std::int64_t rows;
  };

  /// A tensor beside the codes of a module, found by its suffix.
  struct Companion {
    std::string_view suffix;
    const Tensor* tensor;
  };

  void map(const Tensor& tensor) {
    for (const CodeNames& names : names_) {
      const auto module = without(tensor.name, names.codes);
      if (module) return map_codes(std::string(*module), names, tensor);
    }
  }

  void map_codes(const std::string& module, const CodeNames& names, const Tensor& tensor) {
    const DType dtype = tensor.view.dtype;
    if (names.codes == kWeight && dtype == DType::kBf16) return map_bf16(module, names, tensor);
    if (names.codes != kPacked && dtype_bits(dtype) > 8) return;  // a plain tensor
    claim(tensor);
    const std::vector<Companion> scales = claim_all(module, names.scales);
    const std::vector<Companion> second = claim_all(module, names.tensor_scales);
    const Statement& said = config_.about(module);
    std::vector<const Layout*> rows = matching(module, names.codes, dtype, said);
    const Tensor& own = only_scales(module, rows, scales, tensor);
    std::erase_if(rows, [&](const Layout* row) { return !row->scales.dtypes.has(own.view.dtype); });
    if (rows.empty()) {
      refuse(fmt::format("{} has data type {}, which is not known for scales of {} codes",
                         printable(own.name), dtype_name(own.view.dtype), dtype_name(dtype)));
    }
    MappedWeight weight;
    weight.name = module;
    weight.view.element = rows.front()->element;
    models::attach_codes(weight, tensor, rows.front()->codes.shape, segment_rows(module));
    const Layout& layout = models::attach_scales(weight, rows, said, own);
    attach_tensor_scale(weight, layout, second);
    if (!layout.alternating.empty() && module.ends_with(layout.alternating)) {
      weight.row_order = RowOrder::kGateUp;
    }
    weights.push_back(std::move(weight));
  }

  /// A tensor's own data type decides: what is bf16 stays bf16, whatever config.json says.
  void map_bf16(const std::string& module, const CodeNames& names, const Tensor& tensor) {
    claim(tensor);
    if (tensor.view.shape.size() != 2) return;  // a norm
    const std::vector<Companion> scales = claim_all(module, names.scales);
    if (!scales.empty()) {
      refuse(fmt::format("data type BF16 takes no scales, but there is {}",
                         printable(scales.front().tensor->name)));
    }
    MappedWeight weight;
    weight.name = module;
    weight.format = "bf16";
    models::attach_codes(weight, tensor, models::CodeShape::kElements, 0);
    weights.push_back(std::move(weight));
  }

  /// The rows of the table that configuration, name and data type allow; refuses when there is
  /// none, naming the first thing that does not agree.
  std::vector<const Layout*> matching(const std::string& module, std::string_view suffix,
                                      DType dtype, const Statement& said) const {
    if (!said.refused.empty()) refuse(said.refused);
    std::vector<const Layout*> by_dtype;
    for (const Layout& row : models::layouts()) {
      if (row.codes.suffix == suffix && row.codes.dtypes.has(dtype)) by_dtype.push_back(&row);
    }
    if (by_dtype.empty()) {
      refuse(fmt::format(
          "data type {} is not known under the name \"{}\"{}", dtype_name(dtype), suffix,
          suffix == kWeight ? ", expected BF16, F8_E4M3, I8 or U8" : ", expected U8"));
    }
    std::vector<const Layout*> out;
    for (const Layout* row : by_dtype) {
      if (row->when.method != config_.method()) continue;
      if (module.find(row->when.name_part) == std::string::npos) continue;
      if (said.element && (*said.element != row->element || !said.grids.has(row->grid))) continue;
      out.push_back(row);
    }
    if (!out.empty()) return out;
    std::vector<std::string> needs;
    for (const Layout* row : by_dtype) {
      std::string words(row->when.words);
      if (std::find(needs.begin(), needs.end(), words) == needs.end()) {
        needs.push_back(std::move(words));
      }
    }
    refuse(
        fmt::format("data type {} is known under the name \"{}\" where config.json says {}; "
                    "found {}",
                    dtype_name(dtype), suffix, fmt::join(needs, "; or "), said.words));
  }

  /// The one tensor of scales, under one of the names that the rows know.
  static const Tensor& only_scales(const std::string& module,
                                   const std::vector<const Layout*>& rows,
                                   const std::vector<Companion>& companions, const Tensor& codes) {
    std::vector<std::string_view> known;
    for (const Layout* row : rows) {
      for (std::string_view suffix : row->scales.suffixes) add_once(known, suffix);
    }
    const Tensor* found = nullptr;
    for (const Companion& one : companions) {
      if (std::find(known.begin(), known.end(), one.suffix) == known.end()) continue;
      if (found != nullptr) {
        refuse(fmt::format("scales under two names: {} and {}", printable(found->name),
                           printable(one.tensor->name)));
      }
      found = one.tensor;
    }
    if (found != nullptr) return *found;
    std::vector<std::string> tried;
    tried.reserve(known.size());
    for (std::string_view suffix : known) tried.push_back(printable(module + std::string(suffix)));
    refuse(fmt::format("data type {} needs scales, found none (tried {})",
                       dtype_name(codes.view.dtype), fmt::join(tried, ", ")));
  }

  /// NVFP4 has two levels of scales; a second level beside anything else means that it is not what
  /// it seems.
  static void attach_tensor_scale(MappedWeight& weight, const Layout& layout,
                                  const std::vector<Companion>& second) {
    const std::string_view wanted = layout.scales.tensor_suffix;
    for (const Companion& one : second) {
      const std::string name = printable(one.tensor->name);
      if (one.suffix != wanted) {
        refuse(fmt::format("{} takes no second scale of this name, but there is {}", weight.format,
                           name));
      }
      const TensorView& view = one.tensor->view;
      const bool is_one = view.shape.empty() || view.shape == std::vector<std::int64_t>{1};
      if (view.dtype != DType::kF32 || !is_one || weight.groups != 1) {
        refuse(fmt::format("{}: expected one F32 value, found {} {}", name, dtype_name(view.dtype),
                           shape_string(view.shape)));
      }
      weight.tensor_scale = one.tensor;
      weight.tensor_scale_divides = layout.scales.tensor_divides;
    }
    if (!wanted.empty() && weight.tensor_scale == nullptr) {
      refuse(fmt::format("{} needs a second scale, found none (tried {}{})", weight.format,
                         printable(weight.name), wanted));
    }
  }

  std::int64_t segment_rows(const std::string& module) const {
    for (const Segments& segments : segments_) {
      if (segments.pattern.found_in(module)) return segments.rows;
    }
    return 0;
  }

  void claim(const Tensor& tensor) {
    claimed_[static_cast<std::size_t>(&tensor - checkpoint_.tensors().data())] = true;
  }

  /// The scales that belong to a module, whether they can be used or not: one fault is reported
  /// once.
  std::vector<Companion> claim_all(const std::string& module,
                                   const std::vector<std::string_view>& suffixes) {
    std::vector<Companion> out;
    std::string name = module;
    for (std::string_view suffix : suffixes) {
      name.replace(module.size(), std::string::npos, suffix);
      const Tensor* tensor = checkpoint_.find(name);
      if (tensor == nullptr || !is_scale(*tensor)) continue;
      claim(*tensor);
      out.push_back({suffix, tensor});
    }
    return out;
  }

  /// Scales that no weight asked for, and bytes whose meaning is not known.
  void report_leftover(const Tensor& tensor) {
    if (claimed_[static_cast<std::size_t>(&tensor - checkpoint_.tensors().data())]) return;
    std::set<std::string> codes;
    for (const CodeNames& names : names_) {
      for (const auto* list : {&names.scales, &names.tensor_scales}) {
        for (std::string_view suffix : *list) {
          const auto module = without(tensor.name, suffix);
          if (!module || !is_scale(tensor)) continue;
          codes.insert(printable(std::string(*module) + std::string(names.codes)));
        }
      }
    }
    if (!codes.empty()) {
      problems.push_back({tensor.name, fmt::format("scales without a weight that takes them "
                                                   "(looked for {})",
                                                   fmt::join(codes, ", "))});
    } else if (dtype_bits(tensor.view.dtype) <= 8 && tensor.view.dtype != DType::kBool) {
      problems.push_back({tensor.name, fmt::format("data type {} under a name that is not known",
                                                   dtype_name(tensor.view.dtype))});
    }
  }

  const Checkpoint& checkpoint_;
  QuantizationConfig config_;
  std::vector<bool> claimed_;  // per tensor of the checkpoint
  std::vector<Segments> segments_;
  std::vector<CodeNames> names_ = code_names();
};

}  // namespace

WeightView group_view(const MappedWeight& weight, std::int64_t group) {
  if (group < 0 || group >= weight.groups) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("weight '{}': group {} of {}", weight.name, group, weight.groups));
  }
  WeightView view = weight.view;
  const auto moved = [group](const void* data, std::int64_t bytes) -> const void* {
    return data == nullptr ? nullptr : static_cast<const std::byte*>(data) + group * bytes;
  };
  view.codes = moved(view.codes, weight.group_code_bytes);
  view.scales = moved(view.scales, weight.group_scale_bytes);
  return view;
}

WeightMap WeightMap::build(const Checkpoint& checkpoint, const MapOptions& options) {
  Mapper mapper(checkpoint, options);
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
    const std::string_view tensor = problem.tensor;
    const std::size_t end = tensor.find_first_of("._", name.size());  // a suffix and nothing more
    if (!tensor.starts_with(name) || end != name.size()) continue;
    if (tensor.find('.', end + 1) != std::string_view::npos) continue;
    throw Error(ErrorCode::kBadInput,
                fmt::format("{}: {}", checkpoint::tensor_label(problem.tensor), problem.reason));
  }
  throw Error(ErrorCode::kBadInput,
              fmt::format("weight \"{0}\": not found among {1}, expected {0}.weight as BF16 or "
                          "F8_E4M3, or {0}.weight_packed",
                          printable(name), checkpoint::count_label(weights_.size(), "weight")));
}

}  // namespace deepinfer
