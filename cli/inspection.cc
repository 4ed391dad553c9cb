#include "inspection.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string_view>

namespace deepinfer::cli {
namespace {

constexpr std::string_view kDigits = "0123456789";

struct ModelConfig {
  bool tied = false;
};

/// `model_type`, `num_hidden_layers` and `tie_word_embeddings`, at the top or in `text_config`.
ModelConfig read_config(const std::filesystem::path& folder, Inspection& found) {
  ModelConfig config;
  std::ifstream file(folder / "config.json");
  const nlohmann::json json = nlohmann::json::parse(file, nullptr, false);
  if (!json.is_object()) return config;  // none: WeightMap refuses a damaged one
  const nlohmann::json inner = json.value("text_config", nlohmann::json::object());
  for (const nlohmann::json* place : {&json, &inner}) {
    if (!place->is_object()) continue;
    const auto type = place->find("model_type");
    if (found.model_type.empty() && type != place->end() && type->is_string()) {
      found.model_type = type->get<std::string>();
    }
    const auto layers = place->find("num_hidden_layers");
    if (layers != place->end() && layers->is_number_integer()) {
      found.num_layers = layers->get<std::int64_t>();
    }
    const auto tied = place->find("tie_word_embeddings");
    if (tied != place->end() && tied->is_boolean()) config.tied = tied->get<bool>();
  }
  return config;
}

/// Layers that config.json promises. More than that is no fault: draft modules are numbered on.
void find_missing_layers(Inspection& found) {
  for (std::int64_t i = 0; i < found.num_layers; ++i) {
    if (found.layers.count(i) != 0) continue;
    found.problems.push_back(
        {fmt::format("layers.{}", i),
         fmt::format("no tensor, but config.json has num_hidden_layers {}", found.num_layers)});
    constexpr std::size_t kMany = 1000;  // a config.json can claim any number
    if (found.problems.size() > kMany) return;
  }
}

std::string block_of(const WeightView& view) {
  if (view.scales == nullptr) return "";
  if (view.block_n >= view.n && view.block_k >= view.k && view.scale_rows == 1) return "all";
  if (view.block_n == 1 && view.block_k >= view.k) return "row";
  return fmt::format("{} x {}", view.block_n, view.block_k);
}

std::uint64_t bytes_of(const MappedWeight& weight) {
  std::uint64_t bytes = weight.codes->view.size_bytes;
  for (const Tensor* tensor : {weight.scales, weight.tensor_scale}) {
    if (tensor != nullptr) bytes += tensor->view.size_bytes;
  }
  return bytes;
}

class Inspector {
 public:
  Inspector(const Checkpoint& checkpoint, Inspection& found)
      : checkpoint_(checkpoint), found_(found) {}

  void add(const MappedWeight& weight) {
    const std::uint64_t bytes = bytes_of(weight);
    const std::string dtype =
        weight.scales == nullptr ? "" : std::string(dtype_name(weight.scales->view.dtype));
    Kind& kind = kinds_[{pattern_of(weight.name), weight.format, dtype, weight.cannot_run}];
    if (kind.number == 0) {
      kind.pattern = pattern_of(weight.name);
      kind.format = weight.format;
      kind.scales = dtype;
      kind.producer = weight.producer;
      kind.block = block_of(weight.view);
      kind.cannot_run = weight.cannot_run;
    }
    ++kind.number;
    kind.bytes += bytes;
    kind.shapes.insert({weight.groups, weight.view.n, weight.view.k});
    const std::int64_t number = layer_of(weight.name);
    for (Count* count :
         {&found_.formats[weight.format], &found_.layers[number].formats[weight.format]}) {
      count->add(bytes);
      if (!dtype.empty()) count->scales.insert(dtype == "U8" ? "U8 (read as e8m0)" : dtype);
    }
    if (!weight.cannot_run.empty()) {
      found_.cannot_run[weight.cannot_run].insert(number);
      found_.layers[number].cannot_run.insert(weight.cannot_run);
    }
    claim(weight.codes, weight.format, kind);
    claim(weight.scales, weight.format + " scales", kind);
    claim(weight.tensor_scale, weight.format + " scales", kind);
  }

  void add(const Tensor& tensor) {
    found_.dtypes[std::string(dtype_name(tensor.view.dtype))].add(tensor.view.size_bytes);
    const std::int64_t number = layer_of(tensor.name);
    if (found_.format_of.count(&tensor) == 0) {
      found_.formats["other"].add(tensor.view.size_bytes);
      found_.layers[number].formats["other"].add(tensor.view.size_bytes);
    }
    if (found_.scan) found_.total += counts_of(tensor);
  }

  void finish() {
    for (auto& [key, kind] : kinds_) found_.kinds.push_back(std::move(kind));
    std::stable_sort(found_.kinds.begin(), found_.kinds.end(),
                     [](const Kind& a, const Kind& b) { return a.bytes > b.bytes; });
  }

 private:
  void claim(const Tensor* tensor, const std::string& format, Kind& kind) {
    if (tensor == nullptr) return;
    found_.format_of[tensor] = format;
    if (found_.scan) kind.counts += counts_of(*tensor);
  }

  const ScanCounts& counts_of(const Tensor& tensor) const {
    return found_.scan->counts[static_cast<std::size_t>(&tensor - checkpoint_.tensors().data())];
  }

  const Checkpoint& checkpoint_;
  Inspection& found_;
  std::map<std::tuple<std::string, std::string, std::string, std::string>, Kind> kinds_;
};

/// Output and input embeddings that are one: by config.json, or because the bytes are the same.
void find_ties(const Checkpoint& checkpoint, bool tied, Inspection& found) {
  if (tied) {
    std::vector<std::string> names = {"tie_word_embeddings"};
    for (const Tensor& tensor : checkpoint.tensors()) {
      for (const char* end : {"embed_tokens.weight", "lm_head.weight"}) {
        if (tensor.name.ends_with(end)) names.push_back(tensor.name);
      }
    }
    found.ties.push_back(std::move(names));
  }
  if (!found.scan) return;
  for (const auto& same : found.scan->identical) {
    std::vector<std::string> names;
    names.reserve(same.size());
    for (const Tensor* tensor : same) names.push_back(tensor->name);
    found.ties.push_back(std::move(names));
  }
}

}  // namespace

std::int64_t layer_of(const std::string& name) {
  constexpr std::size_t kMostDigits = 9;
  for (const std::string_view mark : {"layers.", "block."}) {
    const std::size_t at = name.find(mark);
    if (at == std::string::npos) continue;
    const std::size_t begin = at + mark.size();
    const std::size_t end = name.find_first_not_of(kDigits, begin);
    if (end == begin || end == std::string::npos || end - begin > kMostDigits) continue;
    return std::stoll(name.substr(begin, end - begin));
  }
  return -1;
}

std::string pattern_of(const std::string& name) {
  std::string out;
  for (std::size_t begin = 0; begin <= name.size();) {
    const std::size_t end = std::min(name.find('.', begin), name.size());
    const std::string_view part = std::string_view(name).substr(begin, end - begin);
    const bool number = !part.empty() && part.find_first_not_of(kDigits) == std::string_view::npos;
    if (begin != 0) out += '.';
    out += number ? "*" : part;
    begin = end + 1;
  }
  return out;
}

Inspection inspect(const Checkpoint& checkpoint, const WeightMap& map, std::optional<Scan> scan) {
  Inspection found;
  found.scan = std::move(scan);
  const ModelConfig config = read_config(checkpoint.directory(), found);
  Inspector inspector(checkpoint, found);
  for (const MappedWeight& weight : map.weights()) inspector.add(weight);
  for (const Tensor& tensor : checkpoint.tensors()) inspector.add(tensor);
  inspector.finish();
  found.problems = map.problems();
  for (const MapProblem& problem : found.problems) {
    ++found.layers[layer_of(problem.tensor)].problems;
  }
  find_missing_layers(found);
  find_ties(checkpoint, config.tied, found);
  return found;
}

}  // namespace deepinfer::cli
