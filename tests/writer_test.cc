// Writing safetensors files: layout, misuse, faults of the disk, and digests.
#include "checkpoint/writer.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <string>
#include <vector>

#include "checkpoint/sha256.h"
#include "deepinfer/checkpoint.h"
#include "deepinfer/error.h"
#include "deepinfer/runtime.h"
#include "safetensors_builder.h"

namespace deepinfer::checkpoint {
namespace {

namespace fs = std::filesystem;
using deepinfer::testing::TempDir;
using deepinfer::testing::write_file;

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

TEST(writer_test, tensors_come_back_whatever_the_order_of_writing) {
  TempDir dir;
  const fs::path path = dir.path() / "m.safetensors";
  SafetensorsWriter writer(path,
                           {{"odd", DType::kU8, {3}},
                            {"scalar", DType::kF32, {}},
                            {"none", DType::kBf16, {0, 4}},
                            {"pair\"s\n", DType::kU8, {2, 2}}},
                           {{"key", "12345"}});
  writer.write(3, 2, bytes_of("CD"));
  writer.write(1, 0, bytes_of("wxyz"));
  writer.write(0, 0, bytes_of("abc"));
  writer.write(3, 0, bytes_of("AB"));
  writer.replace_metadata("key", "54321");
  EXPECT_FALSE(fs::exists(path));
  writer.finish();
  const Checkpoint checkpoint = Checkpoint::open(path);
  const auto text = [&](const char* name) {
    const TensorView& view = checkpoint.at(name).view;
    return std::string(reinterpret_cast<const char*>(view.data), view.size_bytes);
  };
  EXPECT_EQ(text("odd"), "abc");
  EXPECT_EQ(text("scalar"), "wxyz");
  EXPECT_EQ(text("pair\"s\n"), "ABCD");
  EXPECT_EQ(checkpoint.at("none").view.shape, (std::vector<std::int64_t>{0, 4}));
  EXPECT_EQ(checkpoint.metadata().at("key"), "54321");
  EXPECT_EQ(checkpoint.file_bytes(), writer.file_bytes());
}

TEST(writer_test, tensors_are_aligned_to_a_cache_line_or_at_least_to_their_element) {
  TempDir dir;
  const fs::path path = dir.path() / "m.safetensors";
  const std::vector<OutputTensor> tensors = {{"a.scale", DType::kU8, {5}},
                                             {"a", DType::kF8E4m3, {8, 16}},
                                             {"b", DType::kF32, {3}},
                                             {"c", DType::kBf16, {33}},
                                             {"d", DType::kU8, {64}}};
  SafetensorsWriter writer(path, tensors, {});
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::vector<std::byte> zeros(tensor_bytes(tensors[i].dtype, tensors[i].shape));
    writer.write(i, 0, zeros);
  }
  writer.finish();
  const Checkpoint checkpoint = Checkpoint::open(path);
  for (const Tensor& tensor : checkpoint.tensors()) {
    const auto address = reinterpret_cast<std::uintptr_t>(tensor.view.data);  // pages are mapped
    EXPECT_EQ(address % (static_cast<unsigned>(dtype_bits(tensor.view.dtype)) / 8), 0u);
    if (tensor.view.size_bytes % 64 == 0) {
      EXPECT_EQ(address % 64, 0u) << tensor.name;
    }
  }
}

/// The message of the Error that `work` throws.
template <typename Work>
std::string refusal(ErrorCode code, const Work& work) {
  try {
    work();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "accepted";
  return "";
}

TEST(writer_test, misuse_is_refused_and_an_unfinished_file_is_removed) {
  TempDir dir;
  const fs::path path = dir.path() / "m.safetensors";
  constexpr ErrorCode kUsage = ErrorCode::kInvalidArgument;
  {
    SafetensorsWriter writer(path, {{"a", DType::kU8, {4}}}, {{"key", "1"}});
    refusal(kUsage, [&] { writer.write(0, 2, bytes_of("abc")); });
    refusal(kUsage, [&] { writer.write(0, 5, {}); });
    refusal(kUsage, [&] { writer.replace_metadata("key", "12"); });
    writer.write(0, 0, bytes_of("abc"));
    refusal(kUsage, [&] { writer.finish(); });
    EXPECT_FALSE(fs::is_empty(dir.path()));
  }
  refusal(kUsage, [&] {
    SafetensorsWriter twice(path, {{"a", DType::kU8, {1}}, {"a", DType::kU8, {1}}}, {});
  });
  EXPECT_TRUE(fs::is_empty(dir.path()));
}

TEST(writer_test, faults_of_the_system_name_the_file_and_the_reason) {
  TempDir dir;
  const fs::path nowhere = dir.path() / "no" / "m.safetensors";
  const std::string message = refusal(ErrorCode::kIo, [&] { OutputFile file(nowhere); });
  EXPECT_EQ(message, nowhere.string() + ": cannot be created: No such file or directory");
  const fs::path full = "/dev/full";  // every write fails with ENOSPC
  if (fs::exists(full)) {
    fs::create_symlink(full, dir.path() / "m.partial");
    const std::string no_space =
        refusal(ErrorCode::kIo, [&] { write_whole_file(dir.path() / "m", "text"); });
    EXPECT_EQ(no_space,
              (dir.path() / "m").string() + ": cannot be written: No space left on device");
  }
}

TEST(writer_test, a_write_that_is_cut_short_is_continued_or_reported) {
  TempDir dir;
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit old_limit = {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old_limit), 0);
  const rlimit limit = {10, old_limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  // The system takes 10 of 16 bytes, then none.
  const std::string message =
      refusal(ErrorCode::kIo, [&] { write_whole_file(dir.path() / "m", "0123456789abcdef"); });
  ::setrlimit(RLIMIT_FSIZE, &old_limit);
  std::signal(SIGXFSZ, old_handler);
  EXPECT_EQ(message, (dir.path() / "m").string() + ": cannot be written: File too large");
  EXPECT_TRUE(fs::is_empty(dir.path()));
}

std::string sha256(std::string_view text, std::size_t piece) {
  Sha256 hash;
  for (std::size_t i = 0; i < text.size(); i += piece) hash.add(bytes_of(text.substr(i, piece)));
  return hash.finish();
}

TEST(writer_test, sha256_gives_the_published_digests) {
  // FIPS 180-4 and its published examples.
  const struct {
    std::string text;
    const char* digest;
  } rows[] = {
      {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
      {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
      {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
       "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
      {std::string(1000000, 'a'),
       "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"},
  };
  for (const auto& row : rows) {
    for (const std::size_t piece : {1, 63, 64, 65, 4096}) {
      EXPECT_EQ(sha256(row.text, piece), row.digest) << row.text.size() << " by " << piece;
    }
  }
  TempDir dir;
  write_file(dir.path() / "abc", "abc");
  EXPECT_EQ(FileDigest(dir.path() / "abc").get(), rows[1].digest);
  refusal(ErrorCode::kBadInput, [&] { FileDigest(dir.path() / "none").get(); });
  const FileDigest unwanted(dir.path() / "none");
}

/// The handlers of signals that a program may want for itself; sanitizers have some of their own.
std::vector<void (*)(int)> signal_handlers() {
  std::vector<void (*)(int)> handlers;
  for (const int signal : {SIGBUS, SIGSEGV, SIGFPE, SIGINT, SIGTERM, SIGPIPE, SIGXFSZ}) {
    struct sigaction action = {};
    EXPECT_EQ(::sigaction(signal, nullptr, &action), 0);
    handlers.push_back(action.sa_handler);
  }
  return handlers;
}

TEST(writer_test, the_library_installs_no_signal_handler) {
  const auto before = signal_handlers();
  TempDir dir;
  const fs::path path = dir.path() / "m.safetensors";
  SafetensorsWriter writer(path, {{"a", DType::kU8, {1}}}, {});
  writer.write(0, 0, bytes_of("a"));
  writer.finish();
  const Checkpoint checkpoint = Checkpoint::open(path);
  const Context context;
  EXPECT_EQ(signal_handlers(), before);
}

}  // namespace
}  // namespace deepinfer::checkpoint
