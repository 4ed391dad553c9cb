// deepinfer inspect: what a checkpoint holds, and what keeps it from being used.
#include <fmt/format.h>

#include <charconv>
#include <memory>
#include <optional>

#include "commands.h"
#include "deepinfer/checkpoint.h"
#include "deepinfer/error.h"
#include "deepinfer/scan.h"
#include "deepinfer/weight_map.h"
#include "inspect_report.h"
#include "inspection.h"

namespace deepinfer::cli {
namespace {

struct InspectArguments {
  std::string path;
  std::vector<std::string> segments;
  ReportOptions report;
  bool scan = false;
  bool json = false;
};

Segmentation parse_segment(const std::string& text) {
  const std::size_t equals = text.rfind('=');
  Segmentation out;
  if (equals != std::string::npos) {
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data() + equals + 1, end, out.rows);
    if (error == std::errc() && stop == end && out.rows > 0) {
      out.pattern = text.substr(0, equals);
      return out;
    }
  }
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("--segment {}: expected PATTERN=ROWS, e.g. qkv_proj=3392", text));
}

int inspect_command(const InspectArguments& arguments) {
  MapOptions options;
  for (const std::string& text : arguments.segments) {
    options.segmentations.push_back(parse_segment(text));
  }
  const Checkpoint checkpoint = Checkpoint::open(arguments.path);
  const WeightMap map = WeightMap::build(checkpoint, options);
  std::optional<Scan> counts;
  if (arguments.scan) counts = scan(Context(), checkpoint, map);
  const Inspection found = inspect(checkpoint, map, std::move(counts));
  if (arguments.json) {
    print_json_report(checkpoint, found, arguments.report);
  } else {
    print_report(checkpoint, found, arguments.report);
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
  sub->add_flag("--scan", arguments->scan,
                "Read every byte: count NaN, e8m0 bytes 0 and 255, find equal tensors");
  sub->add_flag("--kinds", arguments->report.kinds, "List all kinds of weights");
  sub->add_flag("--layers", arguments->report.layers, "List every layer");
  sub->add_flag("--tensors", arguments->report.tensors, "List every tensor and every problem");
  sub->add_option("--segment", arguments->segments,
                  "PATTERN=ROWS: modules whose scale grid begins anew every ROWS rows")
      ->type_size(1)
      ->allow_extra_args(false);
  sub->add_flag("--json", arguments->json, "Print one JSON object");
  sub->footer(
      "Exits with 1 if there are problems. Weights that are understood but cannot run yet are "
      "none.");
  sub->callback(
      [&command, arguments] { command.run = [arguments] { return inspect_command(*arguments); }; });
}

}  // namespace deepinfer::cli
