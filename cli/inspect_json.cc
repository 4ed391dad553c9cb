#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "deepinfer/version.h"
#include "inspect_report.h"

namespace deepinfer::cli {
namespace {

using nlohmann::json;

json to_json(const std::map<std::string, Count>& counts, const char* key) {
  json out = json::array();
  for (const auto& [name, count] : counts) {
    json row = {{key, name}, {"tensors", count.number}, {"bytes", count.bytes}};
    if (!count.scales.empty()) row["scales"] = count.scales;
    out.push_back(row);
  }
  return out;
}

json to_json(const ScanCounts& counts) {
  return {{"nan", counts.nan},
          {"infinite", counts.infinite},
          {"negative_scales", counts.negative_scales},
          {"e8m0_0", counts.e8m0_0},
          {"e8m0_255", counts.e8m0_255}};
}

json to_json(const Kind& kind, bool scanned) {
  json out = {{"pattern", kind.pattern},
              {"format", kind.format},
              {"weights", kind.number},
              {"bytes", kind.bytes},
              {"shapes", kind.shapes}};
  if (!kind.scales.empty()) {
    out["scales"] = kind.scales;
    out["block"] = kind.block;
    out["producers"] = kind.producer;
  }
  if (!kind.cannot_run.empty()) out["cannot_run"] = kind.cannot_run;
  if (scanned) out["scan"] = to_json(kind.counts);
  return out;
}

json layers_json(const Inspection& found) {
  json out = json::array();
  for (const auto& [number, layer] : found.layers) {
    json row = {{"layer", nullptr}, {"formats", to_json(layer.formats, "format")}};
    if (number >= 0) row["layer"] = number;
    row["problems"] = layer.problems;
    row["cannot_run"] = layer.cannot_run;
    out.push_back(row);
  }
  return out;
}

json tensors_json(const Checkpoint& checkpoint, const Inspection& found) {
  json out = json::array();
  for (const Tensor& tensor : checkpoint.tensors()) {
    const auto format = found.format_of.find(&tensor);
    json row = {{"name", tensor.name},
                {"dtype", dtype_name(tensor.view.dtype)},
                {"shape", tensor.view.shape},
                {"bytes", tensor.view.size_bytes},
                {"format", format == found.format_of.end() ? "other" : format->second}};
    if (found.scan) row["scan"] = to_json(found.scan->counts[out.size()]);
    out.push_back(row);
  }
  return out;
}

}  // namespace

void print_json_report(const Checkpoint& checkpoint, const Inspection& found,
                       const ReportOptions& options) {
  json out = {{"schema", 1},
              {"contract", kNumericContract},
              {"model_type", found.model_type},
              {"layers", found.num_layers},
              {"bytes", checkpoint.file_bytes()},
              {"formats", to_json(found.formats, "format")},
              {"dtypes", to_json(found.dtypes, "dtype")},
              {"kinds", json::array()},
              {"by_layer", layers_json(found)},
              {"ties", found.ties},
              {"cannot_run", json::array()},
              {"files", json::array()},
              {"problems", json::array()}};
  for (const auto& file : checkpoint.files()) out["files"].push_back(file.filename().string());
  for (const Kind& kind : found.kinds)
    out["kinds"].push_back(to_json(kind, found.scan.has_value()));
  for (const auto& [reason, layers] : found.cannot_run) {
    out["cannot_run"].push_back({{"reason", reason}, {"layers", layers}});
  }
  for (const MapProblem& problem : found.problems) {
    out["problems"].push_back({{"tensor", problem.tensor}, {"reason", problem.reason}});
  }
  if (found.scan) out["scan"] = to_json(found.total);
  if (options.tensors) out["tensors"] = tensors_json(checkpoint, found);
  constexpr auto kReplace = json::error_handler_t::replace;  // file names are any bytes
  fmt::print("{}\n", out.dump(2, ' ', false, kReplace));
}

}  // namespace deepinfer::cli
