#include "checkpoint/output_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <system_error>
#include <utility>

#include "checkpoint/message.h"
#include "deepinfer/error.h"

namespace deepinfer::checkpoint {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail_on(const fs::path& path, const char* action, int error) {
  throw Error(ErrorCode::kIo, path_label(path) + ": cannot be " + action + ": " +
                                  std::generic_category().message(error));
}

/// The rename of a file reaches the disk with its folder. Not every file system can flush one, and
/// the files themselves are safe: faults are let pass.
void flush_folder(const fs::path& folder) noexcept {
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  static_cast<void>(::fsync(fd));
  ::close(fd);
}

/// File systems that cannot say are taken for ordinary folders.
bool is_mount_point(const fs::path& folder) noexcept {
  struct statx status = {};
  return ::statx(AT_FDCWD, folder.c_str(), 0, STATX_BASIC_STATS, &status) == 0 &&
         (status.stx_attributes & STATX_ATTR_MOUNT_ROOT) != 0;
}

}  // namespace

OutputFile::OutputFile(fs::path path) : path_(std::move(path)), partial_(path_) {
  partial_ += ".partial";
  constexpr mode_t kMode = 0666;  // less the umask, as for any new file
  fd_ = ::open(partial_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, kMode);
  if (fd_ < 0) fail("created", errno);
}

OutputFile::~OutputFile() {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(partial_.c_str());
}

void OutputFile::fail(const char* action, int error) const { fail_on(path_, action, error); }

void OutputFile::reserve(std::uint64_t bytes) {
  if (bytes == 0) return;
  while (::fallocate(fd_, 0, 0, static_cast<off_t>(bytes)) != 0) {
    const int error = errno;
    if (error == EINTR) continue;
    if (error == EOPNOTSUPP || error == ENOSYS) return;
    fail("written", error);
  }
}

void OutputFile::write_at(std::uint64_t offset, std::span<const std::byte> bytes) {
  constexpr std::size_t kChunk = std::size_t{1} << 26;  // pwrite takes less than 2 GiB at a time
  while (!bytes.empty()) {
    const ssize_t written =
        ::pwrite(fd_, bytes.data(), std::min(bytes.size(), kChunk), static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail("written", errno);
    if (written == 0) fail("written", EIO);  // no progress, and no reason given
    offset += static_cast<std::uint64_t>(written);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
}

void OutputFile::commit() {
  // Some file systems report a failed write only here.
  while (::fsync(fd_) != 0) {
    if (errno != EINTR) fail("flushed", errno);
  }
  const int fd = std::exchange(fd_, -1);
  const int closed = ::close(fd);
  if (closed != 0 && errno != EINTR) {
    const int error = errno;
    ::unlink(partial_.c_str());
    fail("closed", error);
  }
  if (::rename(partial_.c_str(), path_.c_str()) != 0) {
    const int error = errno;
    ::unlink(partial_.c_str());
    fail("renamed", error);
  }
}

void write_whole_file(const fs::path& path, std::string_view content) {
  OutputFile file(path);
  file.write_at(0, std::as_bytes(std::span(content)));
  file.commit();
}

OutputFolder::OutputFolder(const fs::path& path) : path_(fs::absolute(path).lexically_normal()) {
  if (!path_.has_filename()) path_ = path_.parent_path();  // "out/" is "out"
  std::error_code error;
  if (fs::is_symlink(path_, error)) {  // a folder cannot take the place of a link to one
    const fs::path target = fs::canonical(path_, error);
    if (error) refuse("is a link that leads nowhere: " + error.message());
    path_ = target;
  }
  const fs::file_status status = fs::status(path_, error);
  if (fs::exists(status) && (!fs::is_directory(status) || !fs::is_empty(path_, error) || error)) {
    refuse(std::string("already exists, and is ") +
           (fs::is_directory(status) ? "not empty" : "not a folder"));
  }
  if (fs::exists(status) && is_mount_point(path_)) {
    refuse("is a mount point, which cannot be replaced when all is done: name a folder inside");
  }
  partial_ = path_;
  partial_ += ".partial-deepinfer";
  try {
    claim();
  } catch (...) {
    if (lock_ >= 0) ::close(lock_);
    throw;
  }
}

void OutputFolder::refuse(const std::string& why) const {
  throw Error(ErrorCode::kInvalidArgument, path_label(path_) + ": " + why);
}

void OutputFolder::claim() {
  constexpr mode_t kMode = 0777;
  const bool is_new = ::mkdir(partial_.c_str(), kMode) == 0;
  if (!is_new && errno != EEXIST) fail_on(partial_, "created", errno);
  lock_ = ::open(partial_.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (lock_ < 0) fail_on(partial_, "opened", errno);
  if (::flock(lock_, LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) refuse("another run is writing it now");
    if (!is_new) {  // a file system without locks
      refuse("left unfinished or being written by another run: if there is none, remove " +
             path_label(partial_));
    }
  }
  // The other run may have finished before the lock was taken: then it is on the final folder.
  struct stat held = {};
  struct stat there = {};
  if (::fstat(lock_, &held) != 0 || ::lstat(partial_.c_str(), &there) != 0 ||
      held.st_ino != there.st_ino) {
    refuse("another run is writing it now");
  }
  if (is_new) return;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(partial_, error)) {
    if (!error) fs::remove_all(entry.path(), error);
    if (error) fail_on(entry.path(), "removed", error.value());
  }
  replaced_unfinished_ = true;
}

OutputFolder::~OutputFolder() {
  if (!committed_) {
    std::error_code ignored;
    fs::remove_all(partial_, ignored);
  }
  ::close(lock_);
}

void OutputFolder::commit() {
  flush_folder(partial_);
  // Replaces an empty folder, and fails when somebody put files into it meanwhile.
  if (::rename(partial_.c_str(), path_.c_str()) != 0) fail_on(path_, "created", errno);
  committed_ = true;
  flush_folder(path_.parent_path());
}

}  // namespace deepinfer::checkpoint
