// deepinfer quantize: a bf16 checkpoint in, a block-quantized one out.
#include "deepinfer/quantize.h"

#include <fmt/core.h>

#include <chrono>
#include <nlohmann/json.hpp>

#include "commands.h"
#include "deepinfer/error.h"
#include "deepinfer/version.h"
#include "interrupt.h"
#include "model_options.h"
#include "note.h"
#include "progress.h"

namespace deepinfer::cli {
namespace {

struct QuantizeArguments {
  std::string in;
  std::string out;
  std::string format;
  std::vector<std::string> only;
  int threads = 0;
  bool json = false;
};

/// Thrown by the progress callback after a signal.
struct Interrupted {};

/// "REGEX=FORMAT"; a format has no '=', a pattern may have some.
FormatRule parse_rule(const std::string& text) {
  const std::size_t mark = text.rfind('=');
  if (mark == std::string::npos || mark == 0) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("--only: expected REGEX=FORMAT, found \"{}\"", text));
  }
  return {text.substr(0, mark), text.substr(mark + 1)};
}

void print(const QuantizeReport& report, const std::string& out, double seconds) {
  constexpr double kMega = 1e6;
  fmt::print("{:<12} {:>8} {:>12} {:>12}\n", "format", "tensors", "MB in", "MB out");
  for (const FormatTotal& total : report.formats) {
    fmt::print("{:<12} {:>8} {:>12.1f} {:>12.1f}\n", total.format, total.tensors,
               static_cast<double>(total.source_bytes) / kMega,
               static_cast<double>(total.output_bytes) / kMega);
  }
  fmt::print("wrote {} ({:.1f} MB) in {:.2f} s, {:.0f} MB/s of source\n", out,
             static_cast<double>(report.output_bytes) / kMega, seconds,
             static_cast<double>(report.source_bytes) / kMega / seconds);
}

void print_json(const QuantizeReport& report, const std::string& out, double seconds) {
  nlohmann::json formats = nlohmann::json::array();
  for (const FormatTotal& total : report.formats) {
    formats.push_back({{"format", total.format},
                       {"tensors", total.tensors},
                       {"source_bytes", total.source_bytes},
                       {"output_bytes", total.output_bytes}});
  }
  const nlohmann::json json = {{"schema", 1},
                               {"contract", kNumericContract},
                               {"output", out},
                               {"files", report.files},
                               {"formats", formats},
                               {"source_bytes", report.source_bytes},
                               {"output_bytes", report.output_bytes},
                               {"seconds", seconds}};
  fmt::print("{}\n", json.dump(2));
}

int quantize_command(const QuantizeArguments& arguments) {
  QuantizeOptions options;
  options.format = arguments.format;
  for (const std::string& rule : arguments.only) options.rules.push_back(parse_rule(rule));
  const Context context({.num_threads = arguments.threads, .isa = std::nullopt});
  constexpr std::int64_t kParts = 1000;
  Progress progress("quantize", kParts);
  options.progress = [&](std::uint64_t done, std::uint64_t total) {
    if (Interrupts::seen()) throw Interrupted{};
    const double part = static_cast<double>(done) / static_cast<double>(std::max(total, done));
    progress.update(static_cast<std::int64_t>(part * kParts));
  };
  const Interrupts interrupts;
  const auto start = std::chrono::steady_clock::now();
  QuantizeReport report;
  try {
    report = quantize(context, arguments.in, arguments.out, options);
  } catch (const Interrupted&) {
    progress.finish();
    note("deepinfer: interrupted, nothing was written\n");
    return kInterrupted;
  }
  progress.finish();
  if (report.replaced_unfinished) {
    note("deepinfer: {}: removed what an interrupted run had left\n", arguments.out);
  }
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (arguments.json) {
    print_json(report, arguments.out, seconds);
  } else {
    print(report, arguments.out, seconds);
  }
  return kOk;
}

}  // namespace

void add_quantize(CLI::App& app, Command& command) {
  CLI::App* sub = app.add_subcommand("quantize", "Write a block-quantized copy of a checkpoint");
  auto arguments = std::make_shared<QuantizeArguments>();
  std::string formats;
  for (std::string_view name : quantize_formats()) {
    formats += (formats.empty() ? "" : ", ") + std::string(name);
  }
  sub->add_option("IN", arguments->in, "bf16, f16 or f32 checkpoint: a folder or a file")
      ->required();
  sub->add_option("OUT", arguments->out, "Folder to make; must not exist, or be empty")->required();
  sub->add_option("--format", arguments->format, "Format of linear weights: " + formats)
      ->required();
  sub->add_option("--only", arguments->only,
                  "REGEX=FORMAT: another format for modules whose name matches; the first match "
                  "wins")
      ->allow_extra_args(false);
  add_threads_option(*sub, arguments->threads);
  sub->add_flag("--json", arguments->json, "Print one JSON object");
  sub->callback([&command, arguments] {
    command.run = [arguments] { return quantize_command(*arguments); };
  });
}

}  // namespace deepinfer::cli
