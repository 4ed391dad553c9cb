// Files and folders that appear under their final name only when they are complete: whatever goes
// wrong while they are written (a full disk, an error, a signal), nobody finds half of one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>

namespace deepinfer::checkpoint {

/// A file being written as `PATH.partial`. Every fault of the system is thrown as Error(kIo) that
/// names the file and the reason. Without commit() the destructor removes it.
class OutputFile {
 public:
  explicit OutputFile(std::filesystem::path path);
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  ~OutputFile();

  /// Asks for room, so that a full disk is found before hours of work and not after them. File
  /// systems that cannot say are taken at their word later.
  void reserve(std::uint64_t bytes);

  /// Writes at a place of the file. Several threads may write at once.
  void write_at(std::uint64_t offset, std::span<const std::byte> bytes);

  /// Flushes to the disk and gives the file its final name.
  void commit();

 private:
  [[noreturn]] void fail(const char* action, int error) const;

  std::filesystem::path path_;
  std::filesystem::path partial_;
  int fd_ = -1;
};

/// Writes a whole small file.
void write_whole_file(const std::filesystem::path& path, std::string_view content);

/// A folder being filled as `PATH.partial-PID` beside its final place. Without commit() the
/// destructor removes it with all its files.
class OutputFolder {
 public:
  /// Throws Error(kInvalidArgument) if `path` exists and is not an empty folder, Error(kIo) if the
  /// folder cannot be made.
  explicit OutputFolder(const std::filesystem::path& path);
  OutputFolder(const OutputFolder&) = delete;
  OutputFolder& operator=(const OutputFolder&) = delete;
  ~OutputFolder();

  /// Where the files go until commit().
  const std::filesystem::path& partial() const noexcept { return partial_; }

  void commit();

 private:
  std::filesystem::path path_;
  std::filesystem::path partial_;
  bool committed_ = false;
};

}  // namespace deepinfer::checkpoint
