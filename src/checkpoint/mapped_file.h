// A file mapped into memory, read-only.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string_view>

namespace deepinfer::checkpoint {

/// Owns the mapping of one regular file. Empty files are fine and map nothing.
///
/// A file that is cut short by somebody else while it is mapped raises SIGBUS on access: no reader
/// of mapped files can prevent that, and a copy of the weights is not a price to pay for it.
class MappedFile {
 public:
  /// Throws Error(kBadInput) when the path is missing, unreadable or not a regular file,
  /// Error(kOutOfMemory) when there is no address space left.
  static MappedFile open(const std::filesystem::path& path);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const noexcept { return bytes_; }
  std::string_view text() const noexcept {
    return {reinterpret_cast<const char*>(bytes_.data()), bytes_.size()};
  }

 private:
  explicit MappedFile(std::span<const std::byte> bytes) noexcept : bytes_(bytes) {}

  std::span<const std::byte> bytes_;
};

}  // namespace deepinfer::checkpoint
