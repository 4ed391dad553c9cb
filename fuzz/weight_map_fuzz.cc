// Plans quantized tensors: a checkpoint in memory, and a config.json, both from the input. A weight
// that is mapped must be safe to compute with: codes and scales inside their tensors, of the sizes
// that its shape asks for. Everything else must be a problem with one line of reason.
//
//   input: text of config.json | NUL | six bytes per tensor: module, suffix, type, form, sides
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "deepinfer/checkpoint.h"
#include "deepinfer/error.h"
#include "deepinfer/weight_map.h"
#include "fuzz.h"
#include "json_mutator.h"

namespace {

using namespace deepinfer::fuzz;
using deepinfer::DType;
using deepinfer::MappedWeight;
using deepinfer::WeightMap;

constexpr std::array<std::string_view, 6> kModules = {"model.layers.0.mlp.up_proj",
                                                      "model.layers.0.self_attn.q_proj",
                                                      "layers.3.ffn.experts.0.w1",
                                                      "model.layers.1.mlp.experts.7.down_proj",
                                                      "lm_head",
                                                      "norm"};
constexpr std::array<std::string_view, 12> kSuffixes = {
    ".weight",        ".weight_scale_inv", ".weight_scale",        ".scale",
    ".weight_packed", ".weight_scale_2",   ".weight_global_scale", ".input_scale",
    "_blocks",        "_scales",           ".weight_shape",        ".bias"};
constexpr std::array<DType, 10> kTypes = {DType::kBf16, DType::kF8E4m3, DType::kF8E8m0, DType::kU8,
                                          DType::kI8,   DType::kF32,    DType::kF16,    DType::kF4,
                                          DType::kI64,  DType::kF8E5m2};
constexpr std::array<std::int64_t, 16> kSides = {0,  1,  2,  3,   4,   16,  31,  32,
                                                 33, 48, 64, 127, 128, 129, 144, 160};
constexpr std::array<std::pair<std::int64_t, std::int64_t>, 6> kBlocks = {
    {{32, 32}, {128, 128}, {1, 32}, {1, 16}, {1, 160}, {160, 160}}};
constexpr std::size_t kRecordBytes = 6;
constexpr std::size_t kMostTensors = 24;

constexpr std::string_view kWords[] = {"quantization_config",
                                       "quant_method",
                                       "fp8",
                                       "weight_block_size",
                                       "expert_dtype",
                                       "fp4",
                                       "compressed-tensors",
                                       "config_groups",
                                       "group_0",
                                       "targets",
                                       "Linear",
                                       "re:.*mlp",
                                       "re:.*experts",
                                       "weights",
                                       "num_bits",
                                       "type",
                                       "float",
                                       "symmetric",
                                       "strategy",
                                       "group",
                                       "block",
                                       "block_structure",
                                       "group_size",
                                       "text_config",
                                       "ignore",
                                       "format",
                                       "mxfp4-pack-quantized",
                                       "nvfp4-pack-quantized",
                                       "float-quantized",
                                       "channel",
                                       "tensor",
                                       "modelopt",
                                       "quark",
                                       "mxfp4",
                                       "quant_algo",
                                       "NVFP4"};

template <typename Table>
const auto& pick(const Table& table, std::uint8_t byte) {
  return table[byte % table.size()];
}

/// A header entry per record. `form` chooses the rank, or the scale grid of the tensor before.
class HeaderWriter {
 public:
  void add(std::span<const std::uint8_t> record) {
    const std::string name =
        std::string(pick(kModules, record[0])) + std::string(pick(kSuffixes, record[1]));
    if (!names_.insert(name).second) return;
    const DType dtype = pick(kTypes, record[2]);
    std::vector<std::int64_t> shape;
    constexpr std::uint8_t kGrid = 0x80;
    if ((record[3] & kGrid) != 0) {
      const auto& [n, k] = pick(kBlocks, record[3] & 0x7FU);
      const std::int64_t columns = (record[4] & 1U) != 0 ? 2 * last_k_ : last_k_;
      shape = {(last_n_ + n - 1) / n, (columns + k - 1) / k};
    } else {
      shape = {pick(kSides, record[4]), pick(kSides, record[5])};
      last_n_ = shape[0];
      last_k_ = shape[1];
      constexpr std::uint8_t kOtherRank = 0x0F;  // seldom: most tensors are matrices
      if (record[3] == kOtherRank) shape.resize(record[5] % 4, 1);
    }
    auto bits = static_cast<std::size_t>(deepinfer::dtype_bits(dtype));
    for (const std::int64_t side : shape) bits *= static_cast<std::size_t>(side);
    text_ += fmt::format("{}\"{}\":{{\"dtype\":\"{}\",\"shape\":{},\"data_offsets\":[{},{}]}}",
                         text_.empty() ? '{' : ',', name, deepinfer::dtype_name(dtype),
                         deepinfer::shape_string(shape), data_bytes_, data_bytes_ + bits / 8);
    data_bytes_ += bits / 8;
  }

  std::string text() const { return text_.empty() ? "{}" : text_ + "}"; }
  std::size_t data_bytes() const { return data_bytes_; }

 private:
  std::set<std::string> names_;
  std::string text_;
  std::size_t data_bytes_ = 0;
  std::int64_t last_n_ = 0;
  std::int64_t last_k_ = 0;
};

/// The file at the very end of a buffer, so that a read behind it is seen; its data are whatever
/// files before it left there.
std::span<const std::byte> write_file(const HeaderWriter& header) {
  constexpr std::size_t kLargestTensor = 8UL * 160 * 160;
  static std::vector<std::byte> buffer(kMostTensors * (kLargestTensor + 256));
  const std::string text = header.text();
  const std::uint64_t length = text.size();
  const std::size_t size = sizeof(length) + text.size() + header.data_bytes();
  std::byte* file = buffer.data() + buffer.size() - size;
  std::memcpy(file, &length, sizeof(length));
  std::memcpy(file + sizeof(length), text.data(), text.size());
  return {file, size};
}

/// Whether `bytes` from `data` on lie in the tensor.
void require_inside(const void* data, std::int64_t bytes, const deepinfer::TensorView& tensor) {
  const auto* begin = static_cast<const std::byte*>(data);
  require(begin >= tensor.data && bytes >= 0);
  require(begin + bytes <= tensor.data + tensor.size_bytes);
}

void check(const MappedWeight& weight, std::int64_t group) {
  const deepinfer::WeightView view = deepinfer::group_view(weight, group);
  require(view.n >= 0 && view.k >= 0);
  const std::int64_t row =
      view.row_bytes != 0 ? view.row_bytes : deepinfer::code_row_bytes(view.element, view.k);
  require_inside(view.codes, view.n * row, weight.codes->view);
  if (view.scale_type != deepinfer::ScaleType::kNone) {
    const std::int64_t scales = view.scale_rows * view.scale_columns;
    require_inside(view.scales, scales * deepinfer::scale_bytes(view.scale_type),
                   weight.scales->view);
  }
  try {
    const auto prepared = deepinfer::Weight::prepare(view, weight.name);
    require(prepared.bytes() >= 0);
  } catch (const deepinfer::Error& error) {
    require_message(error.what());
  }
}

std::size_t config_length(const std::uint8_t* data, std::size_t size) {
  return static_cast<std::size_t>(std::find(data, data + size, 0) - data);
}

}  // namespace

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size,
                                               std::size_t max_size, unsigned seed) {
  Random random(seed);
  std::string old(reinterpret_cast<const char*>(data), size);
  if (below(random, 2) == 0) Tally::instance().take_accepted(random(), old);
  std::string config = old.substr(0, old.find('\0'));
  std::string tensors = old.substr(std::min(old.size(), config.size() + 1));
  constexpr std::size_t kMostTensorBytes = kMostTensors * kRecordBytes;
  if (below(random, 3) == 0) {
    mutate_json(config, max_size - kMostTensorBytes - 1, random, kWords);
  } else {
    mutate_bytes(tensors, kMostTensorBytes);
  }
  config.resize(std::min(config.find('\0'), config.size()));
  const std::string input = config + '\0' + tensors;
  if (input.size() > max_size) return 0;
  std::memcpy(data, input.data(), input.size());
  return input.size();
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Tally::instance().input();
  const std::size_t length = config_length(data, size);
  const std::string config(reinterpret_cast<const char*>(data), length);
  std::span<const std::uint8_t> records(data + length, size - length);
  if (!records.empty()) records = records.subspan(1);
  HeaderWriter header;
  for (std::size_t i = 0; i < kMostTensors && records.size() >= kRecordBytes; ++i) {
    header.add(records.first(kRecordBytes));
    records = records.subspan(kRecordBytes);
  }
  try {
    const auto file = write_file(header);
    const auto checkpoint = deepinfer::Checkpoint::from_bytes(file, "fuzz.safetensors");
    const WeightMap map =
        WeightMap::build(checkpoint, {.config_json = config.empty() ? "{}" : config});
    for (const MappedWeight& weight : map.weights()) {
      for (std::int64_t group = 0; group < weight.groups; ++group) check(weight, group);
      if (!weight.cannot_run.empty()) require_message(weight.cannot_run);
    }
    for (const deepinfer::MapProblem& problem : map.problems()) require_message(problem.reason);
    if (!map.weights().empty()) Tally::instance().accepted(data, size);
  } catch (const deepinfer::Error& error) {
    require_message(error.what());
  }
  return 0;
}
