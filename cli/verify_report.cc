#include "verify_report.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "deepinfer/version.h"
#include "words.h"

namespace deepinfer::cli {
namespace {

struct KindWords {
  const char* key;  // in JSON
  const char* one;
  const char* many;
};

// In the order of FindingKind.
constexpr std::array<KindWords, kNumFindingKinds> kKinds = {{
    {"nan_code", "NaN code", "NaN codes"},
    {"nan_scale", "NaN scale", "NaN scales"},
    {"bad_scale", "infinite or negative scale", "infinite or negative scales"},
    {"not_finite", "NaN or infinite number", "NaN or infinite numbers"},
    {"zero_scale", "zero scale", "zero scales"},
    {"zero_block", "all-zero block", "all-zero blocks"},
    {"scales_differ", "32x32 block with unequal scales", "32x32 blocks with unequal scales"},
}};

const KindWords& words_of(FindingKind kind) { return kKinds[static_cast<std::size_t>(kind)]; }

std::string counted(std::int64_t count, FindingKind kind) {
  return fmt::format("{} {}", count, count == 1 ? words_of(kind).one : words_of(kind).many);
}

std::string index_string(const std::vector<std::int64_t>& index) {
  return fmt::format("[{}]", fmt::join(index, ","));
}

std::string hex(std::uint64_t bits, int width) {
  return fmt::format("{:#0{}x}", bits, 2 + width / 4);
}

std::string place_string(const FindingPlace& place) {
  return index_string(place.index) +
         (place.width == 0 ? "" : fmt::format(" is {}", hex(place.bits, place.width)));
}

/// Percent, never rounded up to 100.
double percent(std::int64_t part, std::int64_t whole) {
  constexpr double kTenths = 1000;
  if (whole == 0) return 0;
  return std::floor(kTenths * static_cast<double>(part) / static_cast<double>(whole)) / 10;
}

const char* activations_name(Activations activations) {
  switch (activations) {
    case Activations::kAsIs:
      return "as is";
    case Activations::kQuantize224:
      return "quantized at 224";
    case Activations::kQuantize448:
      return "quantized at 448";
  }
  return "";
}

int bits_of(FloatType type) { return type == FloatType::kBf16 ? 16 : 32; }

std::vector<std::string_view> isa_names(const BitCheck& bits) {
  std::vector<std::string_view> names;
  for (const Isa isa : bits.isas) names.push_back(isa_name(isa));
  return names;
}

// ---- For people.

void print_formats(const VerifyReport& report) {
  fmt::print("{:<12} {:>8} {:>10} {:>20}   {}\n", "format", "weights", "MB", "rows compared",
             "found in the bytes");
  for (const FormatCheck& format : report.formats) {
    std::string found;
    for (std::size_t k = 0; k < kNumFindingKinds; ++k) {
      if (format.found[k] == 0) continue;
      found += (found.empty() ? "" : ", ") + counted(format.found[k], static_cast<FindingKind>(k));
    }
    const std::string rows =
        format.rows == 0 ? "-" : fmt::format("{} of {}", format.rows_compared, format.rows);
    fmt::print("{:<12} {:>8} {:>10.1f} {:>20}   {}\n", format.format, format.tensors,
               mega(format.bytes), rows, found.empty() ? "nothing" : found);
  }
}

constexpr std::size_t kScreen = 10;  // lines of one sort; --json has all

/// Errors one tensor a line.
void print_errors(const VerifyReport& report) {
  std::size_t count = 0;
  for (const Finding& finding : report.findings) {
    if (!is_error(finding.kind) || ++count > kScreen) continue;
    std::vector<std::string> places;
    for (const FindingPlace& place : finding.first) places.push_back(place_string(place));
    fmt::print("error: {}: {}: {}{}\n", shown(finding.tensor), counted(finding.count, finding.kind),
               fmt::join(places, ", "),
               finding.count > static_cast<std::int64_t>(places.size()) ? ", ..." : "");
  }
  if (count > kScreen)
    fmt::print("error: in {} more tensors (--json lists all)\n", count - kScreen);
  for (std::size_t i = 0; i < std::min(kScreen, report.problems.size()); ++i) {
    fmt::print("error: {}: {}\n", shown(report.problems[i].tensor), report.problems[i].reason);
  }
  if (report.problems.size() > kScreen) {
    fmt::print("error: {} more problems (--json lists all)\n", report.problems.size() - kScreen);
  }
}

/// Remarks one kind a line.
void print_remarks(const VerifyReport& report) {
  for (std::size_t k = 0; k < kNumFindingKinds; ++k) {
    const auto kind = static_cast<FindingKind>(k);
    if (is_error(kind)) continue;
    const Finding* first = nullptr;
    std::int64_t count = 0;
    std::int64_t tensors = 0;
    for (const Finding& finding : report.findings) {
      if (finding.kind != kind) continue;
      if (first == nullptr) first = &finding;
      count += finding.count;
      ++tensors;
    }
    if (first == nullptr) continue;
    fmt::print("remark: {} in {} tensor{}, the first: {} {}\n", counted(count, kind), tensors,
               tensors == 1 ? "" : "s", shown(first->tensor), place_string(first->first.front()));
  }
}

std::string difference_string(const BitDifference& d) {
  const int width = bits_of(d.type);
  const std::string group = d.group ? fmt::format("[{}]", *d.group) : "";
  return fmt::format("{}{}: y row {}, column {} is {}, the reference has {}", shown(d.tensor),
                     group, d.row, d.column, hex(d.found, width), hex(d.expected, width));
}

void print_comparison(const BitCheck& bits, const VerifyOptions& options) {
  fmt::print("compared {} of {} rows ({:.1f} %) in {:.1f} s, {} outputs: {} differ\n",
             bits.rows_compared, bits.rows, percent(bits.rows_compared, bits.rows), bits.seconds,
             bits.outputs, bits.differences);
  fmt::print("  kernels  {}, against ref on 1 thread\n", fmt::join(isa_names(bits), ", "));
  fmt::print("  threads  {}\n", fmt::join(bits.threads, ", "));
  fmt::print("  batches  {} rows of x\n", fmt::join(bits.batches, ", "));
  fmt::print("  layers   whole, and in slices of columns of y\n");
  fmt::print("  x        as it lies (y f32), and quantized (y bf16)\n");
  fmt::print("  samples  seed {} fixes rows and order{}\n", options.seed,
             options.budget ? "; time decides only where the budget ends" : "");
  if (!bits.first) return;
  const BitDifference& d = *bits.first;
  fmt::print("error: {}\n", difference_string(d));
  fmt::print("  with {}, {} threads, {} rows of x, {}, rows {} to {} of the weight\n",
             isa_name(d.isa), d.threads, d.m, activations_name(d.activations), d.first, d.last - 1);
  if (d.k.empty()) {
    fmt::print("  no single 32-block of k shows it: the order of a sum?\n");
  } else {
    std::vector<std::int64_t> k = d.k;
    k.resize(std::min(k.size(), kScreen));
    fmt::print("  {} 32-block{} of k show{} it alone: {}{}\n", d.k.size(),
               d.k.size() == 1 ? "" : "s", d.k.size() == 1 ? "s" : "", fmt::join(k, ", "),
               d.k.size() > k.size() ? ", ..." : "");
  }
  fmt::print("  the largest relative error of all is {:.3g}\n", bits.largest_error);
}

std::string cannot_run_string(const VerifyReport& report) {
  const std::size_t count = report.cannot_run.size();
  return fmt::format("{} weight{} cannot run", count, count == 1 ? "" : "s");
}

std::string verdict(const VerifyReport& report) {
  for (const Finding& finding : report.findings) {
    if (!is_error(finding.kind)) continue;
    return fmt::format("FAILED: {} {}: {}", shown(finding.tensor),
                       place_string(finding.first.front()), words_of(finding.kind).one);
  }
  if (!report.problems.empty()) {
    const MapProblem& problem = report.problems.front();
    return fmt::format("FAILED: {}: {}", shown(problem.tensor), problem.reason);
  }
  if (report.bits.first) return "FAILED: " + difference_string(*report.bits.first);
  const BitCheck& bits = report.bits;
  return fmt::format("ok: every byte is valid; {:.1f} % of the rows compared, {}{}",
                     percent(bits.rows_compared, bits.rows),
                     bits.rows_compared == 0 ? "so no bit is proved" : "every bit equal",
                     report.cannot_run.empty() ? "" : "; " + cannot_run_string(report));
}

// ---- For programs.

nlohmann::json to_json(const FormatCheck& format) {
  nlohmann::json found = nlohmann::json::object();
  for (std::size_t k = 0; k < kNumFindingKinds; ++k) found[kKinds[k].key] = format.found[k];
  return {{"format", format.format}, {"tensors", format.tensors},
          {"bytes", format.bytes},   {"found", found},
          {"rows", format.rows},     {"rows_compared", format.rows_compared}};
}

nlohmann::json to_json(const Finding& finding) {
  nlohmann::json first = nlohmann::json::array();
  for (const FindingPlace& place : finding.first) {
    nlohmann::json at = {{"index", place.index}};
    if (place.width != 0) at["bits"] = hex(place.bits, place.width);
    first.push_back(at);
  }
  return {{"kind", words_of(finding.kind).key},
          {"error", is_error(finding.kind)},
          {"tensor", finding.tensor},
          {"count", finding.count},
          {"first", first}};
}

nlohmann::json to_json(const std::vector<MapProblem>& problems) {
  nlohmann::json json = nlohmann::json::array();
  for (const auto& [tensor, reason] : problems) {
    json.push_back({{"tensor", tensor}, {"reason", reason}});
  }
  return json;
}

nlohmann::json to_json(const BitDifference& d) {
  nlohmann::json json = {{"tensor", d.tensor},
                         {"row", d.row},
                         {"column", d.column},
                         {"expected", hex(d.expected, bits_of(d.type))},
                         {"found", hex(d.found, bits_of(d.type))},
                         {"activations", activations_name(d.activations)},
                         {"isa", isa_name(d.isa)},
                         {"threads", d.threads},
                         {"m", d.m},
                         {"weight_rows", {d.first, d.last}},
                         {"k_blocks", d.k}};
  if (d.group) json["group"] = *d.group;
  return json;
}

nlohmann::json to_json(const BitCheck& bits, const VerifyOptions& options) {
  nlohmann::json json = {{"rows", bits.rows},
                         {"rows_compared", bits.rows_compared},
                         {"percent", percent(bits.rows_compared, bits.rows)},
                         {"outputs", bits.outputs},
                         {"differences", bits.differences},
                         {"seconds", bits.seconds},
                         {"seed", options.seed},
                         {"isas", isa_names(bits)},
                         {"threads", bits.threads},
                         {"batches", bits.batches}};
  constexpr double kMilli = 1e-3;
  if (options.budget) {
    json["budget_seconds"] = kMilli * static_cast<double>(options.budget->count());
  }
  if (!bits.first) return json;
  json["first_difference"] = to_json(*bits.first);
  // JSON has no infinity.
  if (std::isfinite(bits.largest_error)) json["largest_relative_error"] = bits.largest_error;
  return json;
}

}  // namespace

void print(const VerifyReport& report, const VerifyOptions& options) {
  print_formats(report);
  fmt::print("\n");
  print_errors(report);
  print_remarks(report);
  print_comparison(report.bits, options);
  if (!report.cannot_run.empty()) {
    const MapProblem& first = report.cannot_run.front();
    fmt::print("not compared: {}, the first: {}: {}\n", cannot_run_string(report),
               shown(first.tensor), first.reason);
  }
  fmt::print("{}\n", verdict(report));
}

void print_json(const VerifyReport& report, const VerifyOptions& options) {
  const SystemInfo system = system_info();
  nlohmann::json json = {{"schema", 1},
                         {"contract", kNumericContract},
                         {"version", kVersion},
                         {"machine", {{"cpu", system.cpu}, {"cpus_allowed", system.cpus_allowed}}},
                         {"ok", report.ok()},
                         {"verdict", verdict(report)},
                         {"formats", nlohmann::json::array()},
                         {"findings", nlohmann::json::array()},
                         {"problems", to_json(report.problems)},
                         {"cannot_run", to_json(report.cannot_run)},
                         {"comparison", to_json(report.bits, options)}};
  for (const FormatCheck& format : report.formats) json["formats"].push_back(to_json(format));
  for (const Finding& finding : report.findings) json["findings"].push_back(to_json(finding));
  constexpr auto kReplace = nlohmann::json::error_handler_t::replace;  // names are any bytes
  fmt::print("{}\n", json.dump(2, ' ', false, kReplace));
}

}  // namespace deepinfer::cli
