#include "inspect_report.h"

#include <fmt/format.h>

#include <algorithm>

#include "words.h"

namespace deepinfer::cli {
namespace {

constexpr std::size_t kScreen = 24;
constexpr std::size_t kWidth = 80;
constexpr std::size_t kFewestKinds = 2;
constexpr std::size_t kMostProblems = 2;
constexpr std::size_t kShownName = 60;

/// The end of a name says more than its beginning.
std::string tail(const std::string& name, std::size_t width) {
  const std::string text = shown(name);
  return text.size() <= width ? text : ".." + text.substr(text.size() - width + 2);
}

std::string joined(const std::set<std::string>& words) {
  std::string out;
  for (const std::string& word : words) out += (out.empty() ? "" : ", ") + word;
  return out;
}

std::string size_of(std::uint64_t bytes) {
  constexpr double kMega = 1e6;
  constexpr double kGiga = 1e9;
  const auto value = static_cast<double>(bytes);
  return value < kGiga ? fmt::format("{:.1f} MB", value / kMega)
                       : fmt::format("{:.1f} GB", value / kGiga);
}

/// "3-60, 62"; -1 is what lies outside of layers.
std::string ranges(const std::set<std::int64_t>& numbers) {
  std::string out;
  for (auto at = numbers.begin(); at != numbers.end();) {
    const std::int64_t first = *at;
    std::int64_t last = first;
    for (++at; at != numbers.end() && *at == last + 1 && first >= 0; ++at) last = *at;
    out += out.empty() ? "" : ", ";
    if (first < 0) {
      out += "outside of layers";
    } else {
      out += first == last ? fmt::format("{}", first) : fmt::format("{}-{}", first, last);
    }
  }
  return out;
}

std::string counts_text(const ScanCounts& counts) {
  std::string out = fmt::format("e8m0 bytes 0: {}, 255: {}; NaN: {}, infinite: {}", counts.e8m0_0,
                                counts.e8m0_255, counts.nan, counts.infinite);
  if (counts.negative_scales > 0) out += fmt::format("; scales < 0: {}", counts.negative_scales);
  return out;
}

bool any(const ScanCounts& counts) {
  return counts.nan + counts.infinite + counts.negative_scales + counts.e8m0_0 > 0;
}

/// Lines are gathered before they are printed: how many kinds are shown depends on the rest.
using Lines = std::vector<std::string>;

Lines head_lines(const Checkpoint& checkpoint, const Inspection& found) {
  Lines lines = {fmt::format("model        {}, {} layers",
                             found.model_type.empty() ? "unknown" : tail(found.model_type, 40),
                             found.num_layers),
                 fmt::format("files        {}, {}, {} tensors", checkpoint.files().size(),
                             size_of(checkpoint.file_bytes()), checkpoint.tensors().size())};
  if (!found.ties.empty()) {
    const std::vector<std::string>& first = found.ties.front();
    std::string names;
    for (const std::string& name : first) names += (names.empty() ? "" : ", ") + shown(name);
    const std::string more =
        found.ties.size() > 1 ? fmt::format(" and {} more", found.ties.size() - 1) : "";
    lines.push_back(fmt::format("tied         {}{}", tail(names, 56), more));
  }
  if (found.scan) lines.push_back("scan         " + counts_text(found.total));
  return lines;
}

Lines format_lines(const Inspection& found) {
  Lines lines = {"", fmt::format("{:<14} {:>8} {:>12}   {}", "format", "weights", "", "scales")};
  for (const auto& [name, count] : found.formats) {
    lines.push_back(fmt::format("{:<14} {:>8} {:>12}   {}", name, count.number,
                                size_of(count.bytes),
                                count.scales.empty() ? "-" : joined(count.scales)));
  }
  return lines;
}

std::string kind_line(const Kind& kind) {
  constexpr std::size_t kName = 41;
  return fmt::format("{:<{}} {:>6} {:<12} {:<7}{:>9}", tail(kind.pattern, kName), kName,
                     kind.number, kind.format, kind.scales.empty() ? "-" : kind.scales,
                     size_of(kind.bytes));
}

Lines kind_lines(const Inspection& found, std::size_t limit) {
  const std::size_t count = std::min(found.kinds.size(), limit);
  Lines lines;
  for (std::size_t i = 0; i < count; ++i) {
    const Kind& kind = found.kinds[i];
    lines.push_back(kind_line(kind));
    if (found.scan && any(kind.counts)) lines.push_back("    " + counts_text(kind.counts));
  }
  if (count < found.kinds.size()) {
    lines.push_back(
        fmt::format("and {} more kinds (--kinds lists all)", found.kinds.size() - count));
  }
  return lines;
}

Lines layer_lines(const Inspection& found) {
  Lines lines = {""};
  for (const auto& [number, layer] : found.layers) {
    std::string text = number < 0 ? "outside     " : fmt::format("layer {:<6}", number);
    for (const auto& [format, count] : layer.formats) {
      text += fmt::format(" {} {} ({})", count.number, format, size_of(count.bytes));
    }
    if (layer.problems > 0) text += fmt::format("; {} problems", layer.problems);
    for (const std::string& reason : layer.cannot_run) text += "; cannot run: " + reason;
    lines.push_back(std::move(text));
  }
  return lines;
}

Lines tensor_lines(const Checkpoint& checkpoint, const Inspection& found) {
  Lines lines = {"", fmt::format("{:<14} {:>8} {:>12}", "data type", "tensors", "")};
  for (const auto& [name, count] : found.dtypes) {
    lines.push_back(fmt::format("{:<14} {:>8} {:>12}", name, count.number, size_of(count.bytes)));
  }
  lines.emplace_back();
  for (const Tensor& tensor : checkpoint.tensors()) {
    const auto format = found.format_of.find(&tensor);
    lines.push_back(fmt::format("{}  {}  {}  {} bytes  {}", shown(tensor.name),
                                dtype_name(tensor.view.dtype), shape_string(tensor.view.shape),
                                tensor.view.size_bytes,
                                format == found.format_of.end() ? "other" : format->second));
  }
  return lines;
}

/// What cannot run, and what is wrong. A line that is cut says so by its end.
Lines verdict_lines(const Inspection& found, bool all) {
  Lines lines = {""};
  const auto add = [&](std::string text) {
    if (!all && text.size() > 2 * kWidth) text = text.substr(0, 2 * kWidth - 2) + "..";
    lines.push_back(std::move(text));
  };
  for (const auto& [reason, numbers] : found.cannot_run) {
    add(fmt::format("cannot run yet: {} (layers: {})", reason, ranges(numbers)));
  }
  const std::size_t number = found.problems.size();
  if (number == 0) {
    lines.emplace_back("no problems");
    return lines;
  }
  lines.push_back(fmt::format("{} problem{}", number, number == 1 ? "" : "s"));
  const std::size_t count = all ? number : std::min(number, kMostProblems);
  for (std::size_t i = 0; i < count; ++i) {
    const std::string& tensor = found.problems[i].tensor;
    add(fmt::format("  {}: {}", all ? shown(tensor) : tail(tensor, kShownName),
                    found.problems[i].reason));
  }
  if (count < number) {
    lines.push_back(fmt::format("  and {} more (--tensors lists all)", number - count));
  }
  return lines;
}

/// Rows on the screen that the lines take.
std::size_t rows(const Lines& lines) {
  std::size_t out = 0;
  for (const std::string& line : lines) {
    out += std::max<std::size_t>(1, (line.size() + kWidth - 1) / kWidth);
  }
  return out;
}

}  // namespace

void print_report(const Checkpoint& checkpoint, const Inspection& found,
                  const ReportOptions& options) {
  const Lines head = head_lines(checkpoint, found);
  const Lines formats = format_lines(found);
  const Lines verdict = verdict_lines(found, options.tensors);
  std::size_t limit = found.kinds.size();
  if (!options.kinds && !options.tensors) {
    constexpr std::size_t kFrame = 3;  // the prompt, an empty line, "and more"
    const std::size_t taken = rows(head) + rows(formats) + rows(verdict) + kFrame;
    limit = taken + kFewestKinds < kScreen ? kScreen - taken : kFewestKinds;
    while (limit > kFewestKinds && rows(kind_lines(found, limit)) + taken > kScreen + 1) --limit;
  }
  Lines body = {""};
  const Lines kinds = kind_lines(found, limit);
  body.insert(body.end(), kinds.begin(), kinds.end());
  std::vector<Lines> parts = {head, formats, std::move(body)};
  if (options.layers) parts.push_back(layer_lines(found));
  if (options.tensors) parts.push_back(tensor_lines(checkpoint, found));
  parts.push_back(verdict);
  for (const Lines& part : parts) {
    for (const std::string& line : part) fmt::print("{}\n", line);
  }
}

}  // namespace deepinfer::cli
