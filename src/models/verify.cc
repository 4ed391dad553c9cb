// verify(): opens the checkpoint, looks at its bytes, compares bits, and adds up per format.
#include "deepinfer/verify.h"

#include <algorithm>
#include <map>
#include <utility>

#include "models/row_samples.h"
#include "models/verify_bits.h"
#include "models/verify_bytes.h"

namespace deepinfer {
namespace {

constexpr const char* kOther = "other";

/// Lines of the report, and which of them each tensor belongs to.
struct FormatLines {
  std::map<std::string, FormatCheck> weights;
  FormatCheck other{.format = kOther};
  std::map<std::string, FormatCheck*, std::less<>> of_tensor;
};

FormatLines format_lines(const Checkpoint& checkpoint, const WeightMap& map,
                         const std::vector<std::int64_t>& rows_compared) {
  FormatLines lines;
  for (std::size_t i = 0; i < map.weights().size(); ++i) {
    const MappedWeight& weight = map.weights()[i];
    FormatCheck& line = lines.weights[weight.format];
    line.format = weight.format;
    ++line.tensors;
    line.rows += models::num_rows(weight);
    line.rows_compared += rows_compared[i];
    for (const Tensor* tensor : {weight.codes, weight.scales, weight.tensor_scale}) {
      if (tensor == nullptr) continue;
      line.bytes += tensor->view.size_bytes;
      lines.of_tensor[tensor->name] = &line;
    }
  }
  for (const Tensor& tensor : checkpoint.tensors()) {
    if (!lines.of_tensor.emplace(tensor.name, &lines.other).second) continue;
    ++lines.other.tensors;
    lines.other.bytes += tensor.view.size_bytes;
  }
  return lines;
}

}  // namespace

bool is_error(FindingKind kind) noexcept { return kind <= FindingKind::kNotFinite; }

bool VerifyReport::ok() const noexcept {
  const bool bytes = std::none_of(findings.begin(), findings.end(),
                                  [](const Finding& finding) { return is_error(finding.kind); });
  return bytes && problems.empty() && bits.differences == 0;
}

VerifyReport verify(const Context& context, const std::filesystem::path& path,
                    const VerifyOptions& options) {
  const Checkpoint checkpoint = Checkpoint::open(path);
  const WeightMap map = WeightMap::build(checkpoint);
  const auto progress_of = [&](VerifyStage stage) {
    return [&options, stage](double part) {
      if (options.progress) options.progress(stage, part);
    };
  };
  VerifyReport report;
  report.problems = map.problems();
  for (const MappedWeight& weight : map.weights()) {
    if (weight.cannot_run.empty()) continue;
    report.cannot_run.push_back({weight.codes->name, weight.cannot_run});
  }
  report.findings =
      models::verify_bytes(context, checkpoint, map, progress_of(VerifyStage::kBytes));
  std::vector<std::int64_t> rows_compared;
  report.bits = models::verify_bits(
      map,
      {.budget = options.budget,
       .seed = options.seed,
       .max_threads = context.num_threads(),
       .progress = progress_of(VerifyStage::kBits),
       .linear = [](const Context& c, const MatrixView& x, const Weight& w,
                    const MutableMatrixView& y, Activations a) { linear(c, x, w, y, a); }},
      rows_compared);
  FormatLines lines = format_lines(checkpoint, map, rows_compared);
  for (const Finding& finding : report.findings) {
    lines.of_tensor.at(finding.tensor)->found[static_cast<std::size_t>(finding.kind)] +=
        finding.count;
  }
  for (auto& [name, line] : lines.weights) report.formats.push_back(std::move(line));
  if (lines.other.tensors > 0) report.formats.push_back(std::move(lines.other));
  return report;
}

}  // namespace deepinfer
