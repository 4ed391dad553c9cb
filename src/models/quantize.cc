// quantize(): reads each tensor where it is mapped, encodes rows on all threads, and writes them to
// their place in the output. Nothing larger than a batch of rows is ever held in memory.
#include "deepinfer/quantize.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "checkpoint/mapped_file.h"
#include "checkpoint/message.h"
#include "checkpoint/output_file.h"
#include "checkpoint/sha256.h"
#include "checkpoint/writer.h"
#include "deepinfer/checkpoint.h"
#include "deepinfer/error.h"
#include "deepinfer/version.h"
#include "deepinfer/weight.h"
#include "models/quantize_plan.h"
#include "runtime/thread_pool.h"

namespace deepinfer {
namespace {

namespace fs = std::filesystem;
using checkpoint::SafetensorsWriter;
using models::PlannedTensor;
using models::QuantizePlan;
using weights::BadNumber;
using weights::BlockFormat;
using weights::NumberMatrix;

constexpr std::int64_t kRegionBytes = std::int64_t{64} << 20;  // of the source, between two reports
constexpr std::int64_t kBatchBytes = std::int64_t{1} << 20;    // of codes, per thread and write
constexpr const char* kSingleFile = "model.safetensors";

class Progress {
 public:
  Progress(const QuantizeOptions& options, std::uint64_t total)
      : report_(options.progress), total_(total) {}

  void add(std::uint64_t bytes) {
    done_ += bytes;
    if (report_) report_(done_, total_);
  }

 private:
  const std::function<void(std::uint64_t, std::uint64_t)>& report_;
  std::uint64_t total_;
  std::uint64_t done_ = 0;
};

/// The failures of all threads. Each goes on to its own first one, so that the first of all, which
/// is reported, does not depend on how the work was split.
class Failures {
 public:
  void bad_number(const BadNumber& found) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!bad_ || found.row < bad_->row) bad_ = found;
  }

  void current_exception() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!exception_) exception_ = std::current_exception();
  }

  void rethrow(const Tensor& tensor) const {
    if (bad_) {
      throw Error(
          ErrorCode::kBadInput,
          fmt::format("{}: {} row {}, column {} is {}: only finite weights can be quantized",
                      checkpoint::path_label(tensor.file), checkpoint::tensor_label(tensor.name),
                      bad_->row, bad_->column, bad_->value));
    }
    if (exception_) std::rethrow_exception(exception_);
  }

 private:
  std::mutex mutex_;
  std::optional<BadNumber> bad_;
  std::exception_ptr exception_;
};

/// One tensor of numbers, and where its codes and scales go.
struct Job {
  NumberMatrix matrix;
  BlockFormat block;
  SafetensorsWriter* writer = nullptr;
  std::size_t codes = 0;   // index of the tensor in the writer
  std::size_t scales = 0;  // not used for bf16
  bool bf16_scales = false;

  bool is_bf16() const { return block.element == Element::kBf16; }
  std::int64_t code_bytes() const { return code_row_bytes(block.element, matrix.k); }
  std::int64_t scale_columns() const {
    return matrix.k / block.block_k + (matrix.k % block.block_k != 0 ? 1 : 0);
  }
};

/// Buffers of one thread, reused from tensor to tensor.
struct Buffers {
  std::vector<std::uint8_t> codes;
  std::vector<std::uint8_t> scales;
  std::vector<float> scratch;
};

std::span<const std::byte> bytes_of(const std::vector<std::uint8_t>& buffer, std::int64_t count) {
  return std::as_bytes(std::span(buffer)).first(static_cast<std::size_t>(count));
}

/// e8m0 bytes as bf16, little-endian: 2^(b - 127) has exponent field b. Our bytes are 1 to 254.
std::vector<std::uint8_t> as_bf16(std::span<const std::uint8_t> bytes) {
  std::vector<std::uint8_t> out;
  out.reserve(2 * bytes.size());
  for (const std::uint8_t byte : bytes) {
    out.push_back(static_cast<std::uint8_t>((byte & 1U) << 7));
    out.push_back(static_cast<std::uint8_t>(byte >> 1));
  }
  return out;
}

void write_scales(const Job& job, std::int64_t first, std::int64_t count,
                  const std::vector<std::uint8_t>& scales) {
  const auto offset = static_cast<std::uint64_t>(first);
  if (!job.bf16_scales) return job.writer->write(job.scales, offset, bytes_of(scales, count));
  const auto wide = as_bf16(std::span(scales).first(static_cast<std::size_t>(count)));
  job.writer->write(job.scales, 2 * offset, bytes_of(wide, 2 * count));
}

/// Rows [begin, end), in batches of about kBatchBytes; both are at the edges of blocks.
void run_rows(const Job& job, std::int64_t begin, std::int64_t end, Buffers& buffers,
              Failures& failures) {
  const std::int64_t block_n = job.block.block_n;
  const std::int64_t code_bytes = job.code_bytes();
  const std::int64_t columns = job.scale_columns();
  const std::int64_t block_bytes = std::max<std::int64_t>(1, block_n * code_bytes);
  const std::int64_t batch = block_n * std::max<std::int64_t>(1, kBatchBytes / block_bytes);
  const std::int64_t largest = std::min(batch, end - begin);
  buffers.codes.resize(static_cast<std::size_t>(largest * code_bytes));
  buffers.scales.resize(static_cast<std::size_t>((largest / block_n + 1) * columns));
  buffers.scratch.resize(static_cast<std::size_t>(weights::scratch_floats(job.matrix, job.block)));
  for (std::int64_t row = begin; row < end; row += batch) {
    const std::int64_t count = std::min(batch, end - row);
    const auto bad =
        job.is_bf16()
            ? weights::round_rows_to_bf16(job.matrix, row, count, buffers.codes.data(),
                                          buffers.scratch.data())
            : weights::quantize_rows(job.matrix, row, count, job.block, buffers.codes.data(),
                                     buffers.scales.data(), buffers.scratch.data());
    if (bad) return failures.bad_number(*bad);
    job.writer->write(job.codes, static_cast<std::uint64_t>(row * code_bytes),
                      bytes_of(buffers.codes, count * code_bytes));
    if (job.is_bf16()) continue;
    const std::int64_t blocks = (count + block_n - 1) / block_n;
    write_scales(job, row / block_n * columns, blocks * columns, buffers.scales);
  }
}

class Quantizer {
 public:
  Quantizer(const Context& context, const QuantizePlan& plan, const QuantizeOptions& options,
            std::uint64_t total)
      : pool_(context.pool()),
        plan_(plan),
        progress_(options, total),
        buffers_(static_cast<std::size_t>(context.num_threads())) {}

  /// Writes the tensors of one source file to `out`; returns the bytes of the new file.
  std::uint64_t write_file(const fs::path& source, checkpoint::FileDigest& digest,
                           const fs::path& out, std::map<std::string, std::string> metadata) {
    std::vector<const PlannedTensor*> planned;
    std::vector<checkpoint::OutputTensor> outputs;
    for (const PlannedTensor& tensor : plan_.tensors) {
      if (tensor.source->file != source) continue;
      planned.push_back(&tensor);
      outputs.push_back(tensor.codes);
      if (!tensor.scales.name.empty()) outputs.push_back(tensor.scales);
    }
    constexpr const char* kDigest = "source_sha256";
    metadata["source_file"] = source.filename().string();
    metadata[kDigest] = std::string(checkpoint::FileDigest::kLength, '0');
    SafetensorsWriter writer(out, std::move(outputs), std::move(metadata));
    std::size_t index = 0;
    for (const PlannedTensor* tensor : planned) {
      if (tensor->copied) {
        copy(*tensor->source, writer, index);
      } else {
        encode(*tensor, writer, index);
      }
      index += tensor->scales.name.empty() ? 1 : 2;
    }
    writer.replace_metadata(kDigest, digest.get());
    writer.finish();
    return writer.file_bytes();
  }

 private:
  void copy(const Tensor& tensor, SafetensorsWriter& writer, std::size_t index) {
    const std::span<const std::byte> all(tensor.view.data, tensor.view.size_bytes);
    for (std::uint64_t offset = 0; offset < all.size();) {
      const auto piece = all.subspan(
          offset, std::min<std::uint64_t>(all.size() - offset, std::uint64_t{kRegionBytes}));
      writer.write(index, offset, piece);
      offset += piece.size();
      progress_.add(piece.size());
    }
  }

  void encode(const PlannedTensor& tensor, SafetensorsWriter& writer, std::size_t index) {
    const TensorView& view = tensor.source->view;
    const Job job = {.matrix = {view.data, view.dtype, view.shape[0], view.shape[1]},
                     .block = tensor.format->block,
                     .writer = &writer,
                     .codes = index,
                     .scales = index + 1,
                     .bf16_scales = tensor.scales.dtype == DType::kBf16};
    const std::int64_t row_bytes = job.matrix.k * dtype_bits(view.dtype) / 8;
    const std::int64_t block_n = job.block.block_n;
    const std::int64_t block_bytes = std::max<std::int64_t>(1, block_n * row_bytes);
    const std::int64_t region =
        block_n * std::max<std::int64_t>(pool_.num_threads(), kRegionBytes / block_bytes);
    for (std::int64_t begin = 0; begin < job.matrix.n; begin += region) {
      const std::int64_t rows = std::min(region, job.matrix.n - begin);
      Failures failures;
      pool_.parallel([&](int t) {
        const Share share = share_of(rows, block_n, t, pool_.num_threads());
        if (share.begin >= share.end) return;
        try {
          run_rows(job, begin + share.begin, begin + share.end,
                   buffers_[static_cast<std::size_t>(t)], failures);
        } catch (...) {
          failures.current_exception();
        }
      });
      failures.rethrow(*tensor.source);
      progress_.add(static_cast<std::uint64_t>(rows * row_bytes));
    }
  }

  ThreadPool& pool_;
  const QuantizePlan& plan_;
  Progress progress_;
  std::vector<Buffers> buffers_;
};

/// The digests of the source files. One thread hashes more slowly than all of them quantize, so
/// those of the next files are begun early.
class Digests {
 public:
  Digests(const std::vector<fs::path>& files, int ahead)
      : files_(files), ahead_(static_cast<std::size_t>(ahead)), digests_(files.size()) {}

  checkpoint::FileDigest& of(std::size_t index) {
    for (std::size_t i = index; i < std::min(files_.size(), index + ahead_); ++i) {
      if (digests_[i] == nullptr) digests_[i] = std::make_unique<checkpoint::FileDigest>(files_[i]);
    }
    return *digests_[index];
  }

 private:
  const std::vector<fs::path>& files_;
  std::size_t ahead_;
  std::vector<std::unique_ptr<checkpoint::FileDigest>> digests_;
};

/// Tokenizer, templates, licence: what stands beside the weights and is not about their bytes.
bool goes_along(const fs::path& file) {
  const std::string name = file.filename().string();
  const std::string extension = file.extension().string();
  if (name == "config.json" || name.ends_with(".index.json")) return false;
  for (std::string_view kind : {".json", ".jinja", ".txt", ".model", ".tiktoken", ".md"}) {
    if (extension == kind) return true;
  }
  for (std::string_view word : {"LICENSE", "LICENCE", "NOTICE", "README"}) {
    if (name.starts_with(word)) return true;
  }
  return false;
}

void copy_companions(const fs::path& from, const fs::path& to) {
  std::error_code error;
  for (fs::directory_iterator at(from, error); !error && at != fs::directory_iterator();
       at.increment(error)) {
    std::error_code ignored;
    if (!at->is_regular_file(ignored) || !goes_along(at->path())) continue;
    const auto mapping = checkpoint::MappedFile::open(at->path());
    checkpoint::write_whole_file(to / at->path().filename(), mapping.text());
  }
  if (error) {
    throw Error(ErrorCode::kBadInput,
                checkpoint::path_label(from) + ": cannot be listed: " + error.message());
  }
}

/// The index that other engines need when there are several files.
std::string index_of(const QuantizePlan& plan) {
  nlohmann::ordered_json map = nlohmann::ordered_json::object();
  std::uint64_t total = 0;
  for (const PlannedTensor& tensor : plan.tensors) {
    for (const checkpoint::OutputTensor* output : {&tensor.codes, &tensor.scales}) {
      if (output->name.empty()) continue;
      map[output->name] = tensor.source->file.filename().string();
      total += checkpoint::tensor_bytes(output->dtype, output->shape);
    }
  }
  const nlohmann::ordered_json json = {{"metadata", {{"total_size", total}}}, {"weight_map", map}};
  return json.dump(2) + "\n";
}

std::map<std::string, std::string> output_metadata(const Checkpoint& source) {
  std::map<std::string, std::string> metadata = source.metadata();
  metadata["format"] = "pt";
  metadata["quantized_by"] = fmt::format("deepinfer {}", kVersion);
  metadata["numeric_contract"] = std::to_string(kNumericContract);
  metadata["scale_rule"] = "round-up amax/limit, power of two";
  metadata["scale_limits"] = "e4m3fn 448, e2m1 6";
  return metadata;
}

QuantizeReport report_of(const QuantizePlan& plan) {
  std::map<std::string, FormatTotal> totals;
  QuantizeReport report;
  for (const PlannedTensor& tensor : plan.tensors) {
    FormatTotal& total = totals[tensor.format == nullptr ? "copied" : tensor.format->name];
    ++total.tensors;
    total.source_bytes += tensor.source->view.size_bytes;
    report.source_bytes += tensor.source->view.size_bytes;
    total.output_bytes += checkpoint::tensor_bytes(tensor.codes.dtype, tensor.codes.shape);
    if (!tensor.scales.name.empty()) {
      total.output_bytes += checkpoint::tensor_bytes(tensor.scales.dtype, tensor.scales.shape);
    }
  }
  for (auto& [name, total] : totals) {
    total.format = name;
    report.formats.push_back(total);
  }
  return report;
}

}  // namespace

std::vector<std::string_view> quantize_formats() {
  std::vector<std::string_view> names;
  for (const models::TargetFormat& format : models::target_formats()) names.push_back(format.name);
  return names;
}

QuantizeReport quantize(const Context& context, const fs::path& in, const fs::path& out,
                        const QuantizeOptions& options) {
  models::check_options(options);
  checkpoint::OutputFolder folder(out);  // first: a place that cannot be written ends it here
  const Checkpoint source = Checkpoint::open(in);
  const QuantizePlan plan = models::plan_quantization(source, options);
  QuantizeReport report = report_of(plan);
  report.replaced_unfinished = folder.replaced_unfinished();
  Quantizer quantizer(context, plan, options, report.source_bytes);
  Digests digests(source.files(), context.num_threads());
  const bool single = source.files().size() == 1;
  for (std::size_t i = 0; i < source.files().size(); ++i) {
    const fs::path& file = source.files()[i];
    report.files.push_back(single ? kSingleFile : file.filename().string());
    report.output_bytes += quantizer.write_file(
        file, digests.of(i), folder.partial() / report.files.back(), output_metadata(source));
  }
  if (!single) {
    checkpoint::write_whole_file(folder.partial() / "model.safetensors.index.json", index_of(plan));
  }
  copy_companions(source.directory(), folder.partial());
  checkpoint::write_whole_file(folder.partial() / "config.json", models::output_config(plan));
  folder.commit();
  return report;
}

}  // namespace deepinfer
