// deepinfer verify: are the bytes of a checkpoint valid, and does this machine compute its layers
// with the reference's bits?
#include "deepinfer/verify.h"

#include <fmt/core.h>

#include <charconv>
#include <cmath>
#include <memory>

#include "commands.h"
#include "deepinfer/error.h"
#include "interrupt.h"
#include "model_options.h"
#include "note.h"
#include "progress.h"
#include "verify_report.h"
#include "words.h"

namespace deepinfer::cli {
namespace {

struct VerifyArguments {
  std::string path;
  std::string budget = "60s";
  bool all = false;
  std::uint64_t seed = 1;
  int threads = 0;
  bool json = false;
};

/// Thrown by the progress callback after a signal.
struct Interrupted {};

/// "500ms", "60s", "1.5m", "2h".
std::chrono::milliseconds parse_time(const std::string& text) {
  struct Unit {
    std::string_view name;
    double ms;
  };
  constexpr Unit kUnits[] = {{"ms", 1}, {"s", 1000}, {"m", 60 * 1000}, {"h", 3600 * 1000}};
  constexpr double kLongest = 366.0 * 24 * 3600 * 1000;  // a year
  const char* end = text.data() + text.size();
  double value = -1;
  const auto [at, error] = std::from_chars(text.data(), end, value, std::chars_format::fixed);
  for (const Unit& unit : kUnits) {
    if (error != std::errc() || std::string_view(at, end) != unit.name) continue;
    const double ms = value * unit.ms;
    if (ms >= 0 && ms <= kLongest) return std::chrono::milliseconds(std::llround(ms));
  }
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("--budget: expected a time such as 500ms, 60s, 2m or 1h, found \"{}\"",
                          shown(text)));
}

int verify_command(const VerifyArguments& arguments) {
  VerifyOptions options;
  options.budget = parse_time(arguments.budget);
  if (arguments.all) options.budget.reset();
  options.seed = arguments.seed;
  constexpr std::int64_t kParts = 1000;
  Progress bytes("bytes", kParts);
  Progress bits("bits ", kParts);
  options.progress = [&](VerifyStage stage, double part) {
    if (Interrupts::seen()) throw Interrupted{};
    if (stage == VerifyStage::kBits) bytes.finish();
    (stage == VerifyStage::kBytes ? bytes : bits).update(static_cast<std::int64_t>(part * kParts));
  };
  const Interrupts interrupts;
  const Context context({.num_threads = arguments.threads, .isa = std::nullopt});
  VerifyReport report;
  try {
    report = verify(context, arguments.path, options);
  } catch (const Interrupted&) {
    bytes.finish();
    bits.finish();
    note("deepinfer: interrupted, nothing is proved\n");
    return kInterrupted;
  }
  bits.finish();
  if (arguments.json) {
    print_json(report, options);
  } else {
    print(report, options);
  }
  return report.ok() ? kOk : kFailed;
}

}  // namespace

void add_verify(CLI::App& app, Command& command) {
  CLI::App* sub = app.add_subcommand(
      "verify", "Check every byte of a checkpoint, and the bits of its layers on this machine");
  auto arguments = std::make_shared<VerifyArguments>();
  sub->add_option("PATH", arguments->path, "Checkpoint: a folder, a .safetensors file or an index")
      ->required();
  CLI::Option* budget =
      sub->add_option("--budget", arguments->budget,
                      "Time for comparing rows of layers, such as 500ms, 60s, 2m; bytes are always "
                      "read whole")
          ->type_name("TIME")
          ->capture_default_str();
  sub->add_flag("--all", arguments->all, "Compare all rows, however long it takes")
      ->excludes(budget);
  sub->add_option("--seed", arguments->seed, "Chooses the rows that are compared first, and x")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  add_threads_option(*sub, arguments->threads);
  sub->add_flag("--json", arguments->json, "Print one JSON object");
  sub->footer(
      "Exits with 1 if a byte is bad, a tensor cannot be used, or a bit differs. Compares every\n"
      "instruction set of this CPU with the scalar reference: 1, 2, 3 and --threads threads,\n"
      "single rows and batches, whole layers and slices.");
  sub->callback(
      [&command, arguments] { command.run = [arguments] { return verify_command(*arguments); }; });
}

}  // namespace deepinfer::cli
