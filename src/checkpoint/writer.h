// Writing safetensors files piece by piece: all tensors are declared first, which fixes the layout;
// then their bytes may come in any order, from several threads, without one tensor ever being whole
// in memory.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/output_file.h"
#include "deepinfer/tensor.h"

namespace deepinfer::checkpoint {

struct OutputTensor {
  std::string name;
  DType dtype = DType::kU8;
  std::vector<std::int64_t> shape;
};

/// Bytes of a tensor of this type and shape.
std::uint64_t tensor_bytes(DType dtype, const std::vector<std::int64_t>& shape) noexcept;

/// Every tensor of a file is aligned to its element, and to a cache line of 64 bytes as long as the
/// tensors before it allow: kernels read codes where they lie.
class SafetensorsWriter {
 public:
  /// Writes the header; `bytes` of data follow. Throws Error(kIo), and Error(kInvalidArgument) for
  /// a name given twice.
  SafetensorsWriter(const std::filesystem::path& path, std::vector<OutputTensor> tensors,
                    std::map<std::string, std::string> metadata);

  /// Writes bytes of `tensors[tensor]`, from `offset` on. Several threads may write at once, to
  /// different places. Throws Error(kIo), and Error(kInvalidArgument) past the end of the tensor.
  void write(std::size_t tensor, std::uint64_t offset, std::span<const std::byte> bytes);

  /// Replaces a value of the metadata by one of the same length, e.g. a digest that is known late.
  void replace_metadata(const std::string& key, const std::string& value);

  /// Completes the file. Throws Error(kInvalidArgument) if not all bytes were written.
  void finish();

  std::uint64_t file_bytes() const noexcept { return data_begin_ + data_bytes_; }

 private:
  std::vector<std::size_t> layout() const;
  std::string header() const;

  std::vector<OutputTensor> tensors_;
  std::vector<std::uint64_t> begins_;  // offset in the data, for each tensor
  std::map<std::string, std::string> metadata_;
  std::vector<std::size_t> order_;  // tensors in the order of their data
  std::uint64_t data_begin_ = 0;
  std::uint64_t data_bytes_ = 0;
  std::atomic<std::uint64_t> written_{0};
  OutputFile file_;
};

}  // namespace deepinfer::checkpoint
