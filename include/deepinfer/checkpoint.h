// Reading published checkpoints: safetensors files and sharded folders, mapped, never copied.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "deepinfer/export.h"
#include "deepinfer/tensor.h"

namespace deepinfer {

/// One named tensor of a checkpoint. The bytes lie in the mapped file.
struct Tensor {
  std::string name;
  TensorView view;
  std::filesystem::path file;  ///< the file that holds it
};

/// An open checkpoint: every file mapped read-only, every header checked.
///
/// The views stay valid as long as the Checkpoint lives. Reading from several threads is fine.
class DEEPINFER_API Checkpoint {
 public:
  /// Opens a `.safetensors` file, an index (`*.safetensors.index.json`) or a folder that holds
  /// either `model.safetensors.index.json`, or one or more `.safetensors` files.
  ///
  /// Throws Error(kBadInput) that names the file, the tensor, what was expected and what was found
  /// when anything is missing, damaged, contradictory or not covered by the format; tensors with an
  /// unknown data type are refused as well.
  static Checkpoint open(const std::filesystem::path& path);

  /// The same for the bytes of one safetensors file that is in memory already and outlives this.
  /// Its `name` is for messages, and its folder becomes directory(); nothing is opened there.
  static Checkpoint from_bytes(std::span<const std::byte> file, const std::filesystem::path& name);

  Checkpoint(Checkpoint&&) noexcept;
  Checkpoint& operator=(Checkpoint&&) noexcept;
  ~Checkpoint();

  /// All tensors, sorted by name.
  const std::vector<Tensor>& tensors() const noexcept;

  /// The tensor with this name, or nullptr.
  const Tensor* find(std::string_view name) const noexcept;

  /// The tensor with this name; throws Error(kBadInput) when the checkpoint lacks it.
  const Tensor& at(std::string_view name) const;

  /// `__metadata__` of the file; of a sharded checkpoint, the union (first file wins).
  const std::map<std::string, std::string>& metadata() const noexcept;

  /// The folder that holds the files (config.json and tokenizer.json are looked for there).
  const std::filesystem::path& directory() const noexcept;

  /// The files, in the order they were opened.
  const std::vector<std::filesystem::path>& files() const noexcept;

  /// Sizes of all files together, in bytes.
  std::uint64_t file_bytes() const noexcept;

 private:
  struct State;
  explicit Checkpoint(std::unique_ptr<State> state) noexcept;
  std::unique_ptr<State> state_;
};

}  // namespace deepinfer
