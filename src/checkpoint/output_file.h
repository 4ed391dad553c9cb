// Files and folders that appear under their final name only when they are complete: whatever goes
// wrong while they are written (a full disk, an error, a signal), nobody finds half of one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
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

/// A folder being filled as `PATH.partial-deepinfer` beside its final place. Without commit() the
/// destructor removes it with all its files.
///
/// It is locked while it is filled, and the system drops the lock of a process that is killed: so
/// an unlocked one is what an interrupted run left, and a new run takes its place.
class OutputFolder {
 public:
  /// Everything that commit() could stumble over is looked for here. Throws
  /// Error(kInvalidArgument) if `path` exists and is not an empty folder, is a mount point or a
  /// link that leads nowhere, or if another run is writing it; Error(kIo) if the folder cannot be
  /// made.
  explicit OutputFolder(const std::filesystem::path& path);
  OutputFolder(const OutputFolder&) = delete;
  OutputFolder& operator=(const OutputFolder&) = delete;
  ~OutputFolder();

  /// Where the files go until commit().
  const std::filesystem::path& partial() const noexcept { return partial_; }

  /// Whether an interrupted run had left files, which are gone now.
  bool replaced_unfinished() const noexcept { return replaced_unfinished_; }

  void commit();

 private:
  [[noreturn]] void refuse(const std::string& why) const;

  /// Makes and locks the partial folder, or takes over an unlocked one and empties it.
  void claim();

  std::filesystem::path path_;
  std::filesystem::path partial_;
  int lock_ = -1;
  bool replaced_unfinished_ = false;
  bool committed_ = false;
};

}  // namespace deepinfer::checkpoint
