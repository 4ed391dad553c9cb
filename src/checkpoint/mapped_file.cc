#include "checkpoint/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <system_error>
#include <utility>

#include "checkpoint/message.h"
#include "deepinfer/error.h"

namespace deepinfer::checkpoint {
namespace {

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) noexcept : fd_(fd) {}
  ~FileDescriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;

  int get() const noexcept { return fd_; }

 private:
  int fd_;
};

[[noreturn]] void refuse(const std::filesystem::path& path, const std::string& fault,
                         ErrorCode code = ErrorCode::kBadInput) {
  throw Error(code, path_label(path) + ": " + fault);
}

std::string system_message(int error) { return std::generic_category().message(error); }

std::string file_kind(mode_t mode) {
  if (S_ISDIR(mode)) return "folder";
  if (S_ISFIFO(mode)) return "FIFO";
  if (S_ISSOCK(mode)) return "socket";
  return "device";
}

}  // namespace

MappedFile MappedFile::open(const std::filesystem::path& path) {
  // The kind is asked for before the file is opened: opening some devices has effects of its own.
  // O_NONBLOCK: should a FIFO take the place of the file in between, open() must not wait for its
  // writer.
  struct stat status = {};
  if (::stat(path.c_str(), &status) != 0) {
    const int error = errno;
    std::error_code ignored;
    if (error == ENOENT && std::filesystem::is_symlink(path, ignored)) {
      refuse(path, "link to a missing file: incomplete download?");
    }
    refuse(path, "cannot be opened: " + system_message(error));
  }
  if (!S_ISREG(status.st_mode)) {
    refuse(path, "regular file expected, " + file_kind(status.st_mode) + " found");
  }
  const FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (fd.get() < 0) refuse(path, "cannot be opened: " + system_message(errno));
  if (::fstat(fd.get(), &status) != 0) {
    refuse(path, "cannot be examined: " + system_message(errno));
  }
  if (!S_ISREG(status.st_mode)) {
    refuse(path, "regular file expected, " + file_kind(status.st_mode) + " found");
  }
  const auto size = static_cast<std::size_t>(status.st_size);
  if (size == 0) return MappedFile({});  // mmap refuses a length of 0
  // Private, although nothing is ever written: some network file systems offer only that.
  void* address = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (address == MAP_FAILED) {
    const int error = errno;
    refuse(path, "cannot map " + std::to_string(size) + " bytes: " + system_message(error),
           error == ENOMEM ? ErrorCode::kOutOfMemory : ErrorCode::kBadInput);
  }
  return MappedFile({static_cast<const std::byte*>(address), size});
}

MappedFile::MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  return *this;
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

}  // namespace deepinfer::checkpoint
