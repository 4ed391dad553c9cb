// deepinfer inspect: what a checkpoint holds, and what keeps it from being used.
#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "commands.h"
#include "deepinfer/checkpoint.h"
#include "deepinfer/error.h"
#include "deepinfer/version.h"
#include "deepinfer/weight_map.h"
#include "words.h"

namespace deepinfer::cli {
namespace {

struct Count {
  std::int64_t number = 0;
  std::uint64_t bytes = 0;
  std::set<std::string> scales;  // data types of the scales of a format

  void add(std::uint64_t more) {
    ++number;
    bytes += more;
  }
};

struct Inspection {
  std::string model_type;
  std::int64_t num_layers = 0;
  std::map<std::string, Count> formats;
  std::map<std::string, Count> dtypes;
  std::map<const Tensor*, std::string> format_of;  // of codes and scales; others are plain
  std::vector<MapProblem> problems;
};

/// `model_type` and `num_hidden_layers`, at the top or in `text_config`.
void read_config(const std::filesystem::path& folder, Inspection& found) {
  std::ifstream file(folder / "config.json");
  const nlohmann::json json = nlohmann::json::parse(file, nullptr, false);
  if (!json.is_object()) return;  // none: WeightMap refuses a damaged one
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
  }
}

/// The number after "layers." in a tensor's name, or -1.
std::int64_t layer_of(const std::string& name) {
  constexpr std::string_view kMark = "layers.";
  const std::size_t mark = name.find(kMark);
  if (mark == std::string::npos) return -1;
  constexpr std::size_t kMostDigits = 9;
  const std::size_t begin = mark + kMark.size();
  const std::size_t end = name.find_first_not_of("0123456789", begin);
  if (end == begin || end == std::string::npos || end - begin > kMostDigits) return -1;
  return std::stoll(name.substr(begin, end - begin));
}

/// Layers that config.json promises. More than that is no fault: draft modules are numbered on.
void find_missing_layers(const Checkpoint& checkpoint, Inspection& found) {
  std::set<std::int64_t> present;
  for (const Tensor& tensor : checkpoint.tensors()) present.insert(layer_of(tensor.name));
  for (std::int64_t i = 0; i < found.num_layers; ++i) {
    if (present.count(i) != 0) continue;
    found.problems.push_back(
        {fmt::format("layers.{}", i),
         fmt::format("no tensor, but config.json has num_hidden_layers {}", found.num_layers)});
    constexpr std::size_t kMany = 1000;  // a config.json can claim any number
    if (found.problems.size() > kMany) return;
  }
}

Inspection inspect(const Checkpoint& checkpoint, const WeightMap& map) {
  Inspection found;
  read_config(checkpoint.directory(), found);
  for (const MappedWeight& weight : map.weights()) {
    Count& count = found.formats[weight.format];
    count.add(weight.codes->view.size_bytes);
    found.format_of[weight.codes] = weight.format;
    if (weight.scales == nullptr) continue;
    count.bytes += weight.scales->view.size_bytes;
    found.format_of[weight.scales] = weight.format + " scales";
    const DType dtype = weight.scales->view.dtype;
    count.scales.insert(dtype == DType::kU8 ? "U8 (read as e8m0)" : std::string(dtype_name(dtype)));
  }
  for (const Tensor& tensor : checkpoint.tensors()) {
    found.dtypes[std::string(dtype_name(tensor.view.dtype))].add(tensor.view.size_bytes);
    if (found.format_of.count(&tensor) == 0) found.formats["other"].add(tensor.view.size_bytes);
  }
  found.problems = map.problems();
  find_missing_layers(checkpoint, found);
  return found;
}

std::string joined(const std::set<std::string>& words) {
  std::string out;
  for (const std::string& word : words) out += (out.empty() ? "" : ", ") + word;
  return out;
}

void print_tensors(const Checkpoint& checkpoint, const Inspection& found) {
  for (const Tensor& tensor : checkpoint.tensors()) {
    const auto format = found.format_of.find(&tensor);
    fmt::print("{}  {}  {}  {} bytes  {}\n", shown(tensor.name), dtype_name(tensor.view.dtype),
               shape_string(tensor.view.shape), tensor.view.size_bytes,
               format == found.format_of.end() ? "other" : format->second);
  }
}

void print(const Checkpoint& checkpoint, const Inspection& found, bool all) {
  fmt::print("model        {}, {} layers\n",
             found.model_type.empty() ? "unknown" : shown(found.model_type), found.num_layers);
  fmt::print("files        {}, {:.1f} MB, {} tensors\n", checkpoint.files().size(),
             mega(checkpoint.file_bytes()), checkpoint.tensors().size());
  fmt::print("\n{:<14} {:>8} {:>12}   {}\n", "format", "weights", "MB", "scales");
  for (const auto& [name, count] : found.formats) {
    fmt::print("{:<14} {:>8} {:>12.1f}   {}\n", name, count.number, mega(count.bytes),
               count.scales.empty() ? "-" : joined(count.scales));
  }
  fmt::print("\n{:<14} {:>8} {:>12}\n", "data type", "tensors", "MB");
  for (const auto& [name, count] : found.dtypes) {
    fmt::print("{:<14} {:>8} {:>12.1f}\n", name, count.number, mega(count.bytes));
  }
  if (all) {
    fmt::print("\n");
    print_tensors(checkpoint, found);
  }
  if (found.problems.empty()) {
    fmt::print("\nno problems\n");
    return;
  }
  fmt::print("\n{} problem{}\n", found.problems.size(), found.problems.size() == 1 ? "" : "s");
  constexpr std::size_t kScreen = 10;
  const std::size_t count = all ? found.problems.size() : std::min(found.problems.size(), kScreen);
  for (std::size_t i = 0; i < count; ++i) {
    fmt::print("  {}: {}\n", shown(found.problems[i].tensor), found.problems[i].reason);
  }
  if (count < found.problems.size()) {
    fmt::print("  and {} more (--tensors lists all)\n", found.problems.size() - count);
  }
}

nlohmann::json to_json(const std::map<std::string, Count>& counts, const char* key) {
  nlohmann::json out = nlohmann::json::array();
  for (const auto& [name, count] : counts) {
    nlohmann::json row = {{key, name}, {"tensors", count.number}, {"bytes", count.bytes}};
    if (!count.scales.empty()) row["scales"] = count.scales;
    out.push_back(row);
  }
  return out;
}

void print_json(const Checkpoint& checkpoint, const Inspection& found, bool all) {
  nlohmann::json json = {{"schema", 1},
                         {"contract", kNumericContract},
                         {"model_type", found.model_type},
                         {"layers", found.num_layers},
                         {"bytes", checkpoint.file_bytes()},
                         {"formats", to_json(found.formats, "format")},
                         {"dtypes", to_json(found.dtypes, "dtype")},
                         {"files", nlohmann::json::array()},
                         {"problems", nlohmann::json::array()}};
  for (const auto& file : checkpoint.files()) json["files"].push_back(file.filename().string());
  for (const MapProblem& problem : found.problems) {
    json["problems"].push_back({{"tensor", problem.tensor}, {"reason", problem.reason}});
  }
  if (all) json["tensors"] = nlohmann::json::array();
  for (const Tensor& tensor : checkpoint.tensors()) {
    if (!all) break;
    const auto format = found.format_of.find(&tensor);
    json["tensors"].push_back(
        {{"name", tensor.name},
         {"dtype", dtype_name(tensor.view.dtype)},
         {"shape", tensor.view.shape},
         {"bytes", tensor.view.size_bytes},
         {"format", format == found.format_of.end() ? "other" : format->second}});
  }
  constexpr auto kReplace = nlohmann::json::error_handler_t::replace;  // file names are any bytes
  fmt::print("{}\n", json.dump(2, ' ', false, kReplace));
}

struct InspectArguments {
  std::string path;
  bool tensors = false;
  bool json = false;
};

int inspect_command(const InspectArguments& arguments) {
  const Checkpoint checkpoint = Checkpoint::open(arguments.path);
  const WeightMap map = WeightMap::build(checkpoint);
  const Inspection found = inspect(checkpoint, map);
  if (arguments.json) {
    print_json(checkpoint, found, arguments.tensors);
  } else {
    print(checkpoint, found, arguments.tensors);
  }
  return found.problems.empty() ? kOk : kFailed;
}

}  // namespace

void add_inspect(CLI::App& app, Command& command) {
  CLI::App* sub =
      app.add_subcommand("inspect", "What a checkpoint holds, and what is wrong with it");
  auto arguments = std::make_shared<InspectArguments>();
  sub->add_option("path", arguments->path, "Checkpoint: a folder, a .safetensors file or an index")
      ->required();
  sub->add_flag("--tensors", arguments->tensors, "List every tensor and every problem");
  sub->add_flag("--json", arguments->json, "Print one JSON object");
  sub->footer("Exits with 1 if there are problems.");
  sub->callback(
      [&command, arguments] { command.run = [arguments] { return inspect_command(*arguments); }; });
}

}  // namespace deepinfer::cli
