#include "checkpoint/writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>

#include "checkpoint/message.h"
#include "deepinfer/error.h"

namespace deepinfer::checkpoint {
namespace {

constexpr std::uint64_t kCacheLine = 64;
constexpr std::uint64_t kLengthBytes = 8;  // the length of the header, in front of it

void check_names(const std::vector<OutputTensor>& tensors) {
  std::set<std::string_view> names;
  for (const OutputTensor& tensor : tensors) {
    if (names.insert(tensor.name).second) continue;
    throw Error(ErrorCode::kInvalidArgument, tensor_label(tensor.name) + ": declared twice");
  }
}

}  // namespace

std::uint64_t tensor_bytes(DType dtype, const std::vector<std::int64_t>& shape) noexcept {
  std::uint64_t count = 1;
  for (const std::int64_t side : shape) count *= static_cast<std::uint64_t>(side);
  return count * static_cast<std::uint64_t>(dtype_bits(dtype)) / 8;
}

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path,
                                     std::vector<OutputTensor> tensors,
                                     std::map<std::string, std::string> metadata)
    : tensors_(std::move(tensors)),
      begins_(tensors_.size()),
      metadata_(std::move(metadata)),
      order_(layout()),
      file_(path) {
  check_names(tensors_);
  for (const std::size_t i : order_) {
    begins_[i] = data_bytes_;
    data_bytes_ += tensor_bytes(tensors_[i].dtype, tensors_[i].shape);
  }
  const std::string text = header();
  data_begin_ = text.size();
  file_.reserve(file_bytes());
  file_.write_at(0, std::as_bytes(std::span(text)));
}

/// Sizes that are whole cache lines first, so that they all begin on one; then larger elements
/// before smaller ones, so that each is aligned to itself.
std::vector<std::size_t> SafetensorsWriter::layout() const {
  std::vector<std::size_t> order(tensors_.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto key = [this](std::size_t i) {
    const OutputTensor& t = tensors_[i];
    const bool ragged = tensor_bytes(t.dtype, t.shape) % kCacheLine != 0;
    return std::tuple<bool, int, const std::string&>(ragged, -dtype_bits(t.dtype), t.name);
  };
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return key(a) < key(b); });
  return order;
}

/// Length and text of the header, padded with spaces so that the data begins on a cache line.
std::string SafetensorsWriter::header() const {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  if (!metadata_.empty()) json["__metadata__"] = metadata_;
  for (const std::size_t i : order_) {
    const OutputTensor& t = tensors_[i];
    json[t.name] = {{"dtype", dtype_name(t.dtype)},
                    {"shape", t.shape},
                    {"data_offsets", {begins_[i], begins_[i] + tensor_bytes(t.dtype, t.shape)}}};
  }
  std::string text = json.dump();
  while ((kLengthBytes + text.size()) % kCacheLine != 0) text += ' ';
  std::string out;
  for (std::uint64_t shift = 0; shift < 8 * kLengthBytes; shift += 8) {
    out += static_cast<char>((text.size() >> shift) & 0xFFU);
  }
  return out + text;
}

void SafetensorsWriter::write(std::size_t tensor, std::uint64_t offset,
                              std::span<const std::byte> bytes) {
  const OutputTensor& t = tensors_.at(tensor);
  const std::uint64_t size = tensor_bytes(t.dtype, t.shape);
  if (offset > size || bytes.size() > size - offset) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{}: has {} bytes, found {} more at {}", tensor_label(t.name), size,
                            bytes.size(), offset));
  }
  file_.write_at(data_begin_ + begins_[tensor] + offset, bytes);
  written_.fetch_add(bytes.size(), std::memory_order_relaxed);
}

void SafetensorsWriter::replace_metadata(const std::string& key, const std::string& value) {
  std::string& place = metadata_.at(key);
  if (place.size() != value.size()) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("metadata \"{}\": expected {} bytes, found {}", key, place.size(),
                            value.size()));
  }
  place = value;
}

void SafetensorsWriter::finish() {
  if (written_ != data_bytes_) {
    throw Error(ErrorCode::kInvalidArgument, fmt::format("expected {} bytes of tensors, found {}",
                                                         data_bytes_, written_.load()));
  }
  const std::string text = header();
  if (text.size() != data_begin_) {
    throw Error(ErrorCode::kInvalidArgument, "the header changed its length");
  }
  file_.write_at(0, std::as_bytes(std::span(text)));
  file_.commit();
}

}  // namespace deepinfer::checkpoint
