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

/// All suffixes in the table that have one role, each once.
std::vector<std::string_view> suffixes(auto&& add) {
  std::vector<std::string_view> out;
  for (const Layout& layout : models::layouts()) add(layout, out);
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  if (!out.empty() && out.front().empty()) out.erase(out.begin());
  return out;
}

/// The part in front of `suffix`, or nothing.
std::optional<std::string_view> without(std::string_view name, std::string_view suffix) {
  if (!name.ends_with(suffix) || name.size() == suffix.size()) return std::nullopt;
  return name.substr(0, name.size() - suffix.size());
}

/// Whether a tensor with a scale's name is one. Some models call their norms `.scale`.
bool is_scale(const Tensor& tensor) {
  if (tensor.name.find(".weight_scale") != std::string::npos) return true;
  return tensor.view.shape.size() >= 2 || dtype_bits(tensor.view.dtype) <= 8;
}

std::string list_of(const std::vector<std::string>& names) {
  return fmt::format("{}", fmt::join(names, ", "));
}

class Mapper {
 public:
  Mapper(const Checkpoint& checkpoint, const MapOptions& options)
      : checkpoint_(checkpoint),
        config_(QuantizationConfig::read(checkpoint.directory())),
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

  void map(const Tensor& tensor) {
    for (std::string_view suffix : code_suffixes_) {
      const auto module = without(tensor.name, suffix);
      if (module) return map_codes(std::string(*module), suffix, tensor);
    }
  }

  void map_codes(const std::string& module, std::string_view suffix, const Tensor& tensor) {
    const DType dtype = tensor.view.dtype;
    if (suffix == kWeight && dtype == DType::kBf16) return map_bf16(module, tensor);
    if (suffix != kPacked && dtype_bits(dtype) > 8) return;  // a plain tensor
    claim(tensor);
    claim_companions(module, suffix);
    const Statement& said = config_.about(module);
    const std::vector<const Layout*> possible = matching(module, suffix, dtype, said);
    const Tensor& scales = companion(module, possible, tensor);
    std::vector<const Layout*> fitting;
    std::copy_if(possible.begin(), possible.end(), std::back_inserter(fitting),
                 [&](const Layout* row) { return row->scales.dtypes.has(scales.view.dtype); });
    if (fitting.empty()) {
      refuse(fmt::format("{} has data type {}, which is not known for scales of {} codes",
                         printable(scales.name), dtype_name(scales.view.dtype), dtype_name(dtype)));
    }
    MappedWeight weight;
    weight.name = module;
    weight.view.element = fitting.front()->element;
    models::attach_codes(weight, tensor, fitting.front()->codes.shape, segment_rows(module));
    const Layout& layout = models::attach_scales(weight, fitting, said, scales);
    attach_tensor_scale(weight, layout);
    if (!layout.alternating.empty() && module.ends_with(layout.alternating)) {
      weight.row_order = RowOrder::kGateUp;
    }
    weights.push_back(std::move(weight));
  }

  /// A tensor's own data type decides: what is bf16 stays bf16, whatever config.json says.
  void map_bf16(const std::string& module, const Tensor& tensor) {
    claim(tensor);
    if (tensor.view.shape.size() != 2) return;  // a norm
    claim_companions(module, kWeight);
    for (std::string_view suffix : scale_suffixes_) {
      const Tensor* scales = scale_tensor(module, suffix);
      if (scales == nullptr) continue;
      refuse(
          fmt::format("data type BF16 takes no scales, but there is {}", printable(scales->name)));
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

  /// The one tensor of scales that goes with the codes.
  const Tensor& companion(const std::string& module, const std::vector<const Layout*>& rows,
                          const Tensor& codes) const {
    const Tensor* found = nullptr;
    std::vector<std::string> tried;
    for (const Layout* row : rows) {
      for (std::string_view suffix : row->scales.suffixes) {
        std::string name = printable(module + std::string(suffix));
        if (suffix.empty() || std::find(tried.begin(), tried.end(), name) != tried.end()) continue;
        tried.push_back(std::move(name));
        const Tensor* tensor = checkpoint_.find(module + std::string(suffix));
        if (tensor == nullptr) continue;
        if (found != nullptr) {
          refuse(fmt::format("scales under two names: {} and {}", printable(found->name),
                             printable(tensor->name)));
        }
        found = tensor;
      }
    }
    if (found == nullptr) {
      refuse(fmt::format("data type {} needs scales, found none (tried {})",
                         dtype_name(codes.view.dtype), list_of(tried)));
    }
    return *found;
  }

  /// NVFP4 has two levels of scales; a second level beside anything else means that it is not what
  /// it seems.
  void attach_tensor_scale(MappedWeight& weight, const Layout& layout) const {
    const std::string_view wanted = layout.scales.tensor_suffix;
    for (std::string_view suffix : tensor_suffixes_) {
      const std::string name = weight.name + std::string(suffix);
      const Tensor* tensor = checkpoint_.find(name);
      if (suffix != wanted) {
        if (tensor != nullptr)
          refuse(fmt::format("{} takes no second scale, but there is {}", weight.format,
                             printable(name)));
        continue;
      }
      if (tensor == nullptr) {
        refuse(fmt::format("{} needs a second scale, found none (tried {})", weight.format,
                           printable(name)));
      }
      const std::vector<std::int64_t>& shape = tensor->view.shape;
      const bool is_one = shape.empty() || shape == std::vector<std::int64_t>{1};
      if (tensor->view.dtype != DType::kF32 || !is_one || weight.groups != 1) {
        refuse(fmt::format("{}: expected one F32 value, found {} {}", printable(name),
                           dtype_name(tensor->view.dtype), shape_string(shape)));
      }
      weight.tensor_scale = tensor;
      weight.tensor_scale_divides = layout.scales.tensor_divides;
    }
  }

  std::int64_t segment_rows(const std::string& module) const {
    for (const Segments& segments : segments_) {
      if (segments.pattern.found_in(module)) return segments.rows;
    }
    return 0;
  }

  const Tensor* scale_tensor(const std::string& module, std::string_view suffix) const {
    const Tensor* tensor = checkpoint_.find(module + std::string(suffix));
    return tensor != nullptr && is_scale(*tensor) ? tensor : nullptr;
  }

  void claim(const Tensor& tensor) {
    claimed_[static_cast<std::size_t>(&tensor - checkpoint_.tensors().data())] = true;
  }

  /// All scales that belong to these codes, whether they can be used or not: one fault is reported
  /// once.
  void claim_companions(const std::string& module, std::string_view codes) {
    for (const Layout& row : models::layouts()) {
      if (row.codes.suffix != codes) continue;
      for (std::string_view suffix : row.scales.suffixes) {
        const Tensor* tensor = suffix.empty() ? nullptr : scale_tensor(module, suffix);
        if (tensor != nullptr) claim(*tensor);
      }
      const std::string_view second = row.scales.tensor_suffix;
      const Tensor* tensor = second.empty() ? nullptr : scale_tensor(module, second);
      if (tensor != nullptr) claim(*tensor);
    }
  }

  /// Scales that no weight asked for, and bytes whose meaning is not known.
  void report_leftover(const Tensor& tensor) {
    if (claimed_[static_cast<std::size_t>(&tensor - checkpoint_.tensors().data())]) return;
    for (const auto* list : {&scale_suffixes_, &tensor_suffixes_}) {
      for (std::string_view suffix : *list) {
        const auto module = without(tensor.name, suffix);
        if (!module || !is_scale(tensor)) continue;
        problems.push_back({tensor.name, fmt::format("scales without a weight that takes them "
                                                     "(looked for {})",
                                                     list_of(codes_for(*module, suffix)))});
        return;
      }
    }
    if (dtype_bits(tensor.view.dtype) <= 8 && tensor.view.dtype != DType::kBool) {
      problems.push_back({tensor.name, fmt::format("data type {} under a name that is not known",
                                                   dtype_name(tensor.view.dtype))});
    }
  }

  /// Names of codes that take scales of this name.
  static std::vector<std::string> codes_for(std::string_view module, std::string_view suffix) {
    std::set<std::string> names;
    for (const Layout& row : models::layouts()) {
      const auto& scales = row.scales.suffixes;
      const bool takes = std::find(scales.begin(), scales.end(), suffix) != scales.end();
      if (!takes && row.scales.tensor_suffix != suffix) continue;
      names.insert(printable(std::string(module) + std::string(row.codes.suffix)));
    }
    return {names.begin(), names.end()};
  }

  const Checkpoint& checkpoint_;
  QuantizationConfig config_;
  std::vector<bool> claimed_;  // per tensor of the checkpoint
  std::vector<Segments> segments_;
  std::vector<std::string_view> code_suffixes_ =
      suffixes([](const Layout& row, auto& out) { out.push_back(row.codes.suffix); });
  std::vector<std::string_view> scale_suffixes_ = suffixes([](const Layout& row, auto& out) {
    out.insert(out.end(), row.scales.suffixes.begin(), row.scales.suffixes.end());
  });
  std::vector<std::string_view> tensor_suffixes_ =
      suffixes([](const Layout& row, auto& out) { out.push_back(row.scales.tensor_suffix); });
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
