// Opening checkpoints: files, indexes and folders; what is refused and what the views show.
#include "deepinfer/checkpoint.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/shard_index.h"
#include "deepinfer/error.h"
#include "safetensors_builder.h"

namespace deepinfer {
namespace {

namespace fs = std::filesystem;
using testing::SafetensorsBuilder;
using testing::TempDir;
using testing::write_file;
using testing::write_index;

constexpr const char* kIndexName = "model.safetensors.index.json";
constexpr const char* kFirst = "first.safetensors";
constexpr const char* kSecond = "second.safetensors";
constexpr const char* kShard1 = "model-00001-of-00003.safetensors";
constexpr const char* kShard2 = "model-00002-of-00003.safetensors";
constexpr const char* kShard3 = "model-00003-of-00003.safetensors";

/// The message of the refusal; a failed test when the path opens or the message has many lines.
std::string refusal(const fs::path& path) {
  try {
    Checkpoint::open(path);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kBadInput);
    const std::string message = error.what();
    EXPECT_EQ(message.find_first_of("\n\r\t\x1b"), std::string::npos) << message;
    return message;
  }
  ADD_FAILURE() << path << " was opened";
  return "";
}

#define EXPECT_REFUSED(path, words)                               \
  do {                                                            \
    const std::string message = refusal(path);                    \
    EXPECT_NE(message.find(words), std::string::npos) << message; \
  } while (false)

/// A shard with one-byte tensors of these names; `value` is the byte.
void write_shard(const fs::path& path, const std::vector<std::string>& names,
                 std::uint8_t value = 0) {
  SafetensorsBuilder builder;
  for (const std::string& name : names) {
    builder.add(name, DType::kU8, {1}, std::vector<std::uint8_t>{value});
  }
  builder.metadata("format", "pt").metadata("from", path.filename().string()).write(path);
}

TEST(checkpoint, single_file_is_opened) {
  TempDir dir;
  const fs::path file = dir.path() / "model.safetensors";
  SafetensorsBuilder()
      .add("z", DType::kF32, {2, 1}, std::vector<float>{1, 2})
      .add("a", DType::kU8, {}, std::vector<std::uint8_t>{7})
      .metadata("format", "pt")
      .write(file);
  const Checkpoint checkpoint = Checkpoint::open(file);
  ASSERT_EQ(checkpoint.tensors().size(), 2u);
  EXPECT_EQ(checkpoint.tensors()[0].name, "a");
  EXPECT_EQ(checkpoint.tensors()[1].name, "z");
  EXPECT_EQ(*checkpoint.at("a").view.data, std::byte{7});
  EXPECT_EQ(checkpoint.at("z").view.shape, (std::vector<std::int64_t>{2, 1}));
  EXPECT_EQ(checkpoint.at("z").view.size_bytes, 8u);
  EXPECT_EQ(checkpoint.at("z").file, file);
  EXPECT_EQ(checkpoint.metadata().at("format"), "pt");
  EXPECT_EQ(checkpoint.directory(), dir.path());
  EXPECT_EQ(checkpoint.files(), std::vector<fs::path>{file});
  EXPECT_EQ(checkpoint.file_bytes(), fs::file_size(file));
}

TEST(checkpoint, find_returns_nothing_and_at_throws_for_other_names) {
  TempDir dir;
  write_shard(dir.path() / "m.safetensors", {"b", "d"});
  const Checkpoint checkpoint = Checkpoint::open(dir.path());
  for (const char* name : {"", "a", "c", "e"}) EXPECT_EQ(checkpoint.find(name), nullptr);
  try {
    checkpoint.at("c\n");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kBadInput);
    EXPECT_NE(std::string(error.what()).find(R"(tensor "c\x0a")"), std::string::npos);
  }
}

TEST(checkpoint, moved_checkpoint_keeps_its_views) {
  TempDir dir;
  write_shard(dir.path() / "m.safetensors", {"a"}, 9);
  Checkpoint first = Checkpoint::open(dir.path());
  const std::byte* data = first.at("a").view.data;
  const Checkpoint second = std::move(first);
  EXPECT_EQ(second.at("a").view.data, data);
  EXPECT_EQ(*data, std::byte{9});
}

TEST(checkpoint, folder_without_index_joins_its_files) {
  TempDir dir;
  write_shard(dir.path() / kSecond, {"b"}, 2);
  write_shard(dir.path() / kFirst, {"a", "c"}, 1);
  write_file(dir.path() / "config.json", "{}");
  fs::create_directory(dir.path() / "folder.safetensors");
  const Checkpoint checkpoint = Checkpoint::open(dir.path());
  EXPECT_EQ(checkpoint.tensors().size(), 3u);
  EXPECT_EQ(*checkpoint.at("b").view.data, std::byte{2});
  EXPECT_EQ(checkpoint.files(), (std::vector<fs::path>{dir.path() / kFirst, dir.path() / kSecond}));
  EXPECT_EQ(checkpoint.metadata().at("from"), kFirst);
  EXPECT_EQ(checkpoint.file_bytes(),
            fs::file_size(dir.path() / kFirst) + fs::file_size(dir.path() / kSecond));
}

TEST(checkpoint, numbered_files_without_index_must_all_be_there) {
  TempDir dir;
  write_shard(dir.path() / kShard1, {"a"});
  write_shard(dir.path() / kShard2, {"b"});
  EXPECT_REFUSED(dir.path(), "of-00003");
  EXPECT_REFUSED(dir.path(), "2 found");
  write_shard(dir.path() / "model-00003-of-00003.safetensors", {"c"});
  EXPECT_EQ(Checkpoint::open(dir.path()).tensors().size(), 3u);
}

TEST(checkpoint, same_name_in_two_files_is_refused) {
  TempDir dir;
  write_shard(dir.path() / kFirst, {"a", "b"});
  write_shard(dir.path() / kSecond, {"b"});
  EXPECT_REFUSED(dir.path(), "tensor \"b\"");
  EXPECT_REFUSED(dir.path(), kFirst);
  EXPECT_REFUSED(dir.path(), kSecond);
}

TEST(checkpoint, folder_without_checkpoint_is_refused) {
  TempDir dir;
  EXPECT_REFUSED(dir.path(), "no .safetensors file");
  fs::create_directory(dir.path() / "model.safetensors");
  EXPECT_REFUSED(dir.path(), "no .safetensors file");
}

TEST(checkpoint, link_to_a_missing_file_is_an_incomplete_download) {
  TempDir dir;
  write_shard(dir.path() / kShard1, {"a"});
  fs::create_symlink(dir.path() / "blobs" / "gone", dir.path() / kShard2);
  EXPECT_REFUSED(dir.path(), "incomplete download?");
}

TEST(checkpoint, links_are_followed) {
  TempDir dir;
  fs::create_directory(dir.path() / "blobs");
  fs::create_directory(dir.path() / "snapshot");
  write_shard(dir.path() / "blobs" / "0a1b2c", {"a"});
  fs::create_symlink("../blobs/0a1b2c", dir.path() / "snapshot" / "model.safetensors");
  const Checkpoint checkpoint = Checkpoint::open(dir.path() / "snapshot" / "model.safetensors");
  EXPECT_EQ(checkpoint.directory(), dir.path() / "snapshot");
  EXPECT_EQ(Checkpoint::open(dir.path() / "snapshot").tensors().size(), 1u);
}

TEST(checkpoint, paths_that_are_not_checkpoints_are_refused) {
  TempDir dir;
  EXPECT_REFUSED(dir.path() / "gone.safetensors", "No such file");
  EXPECT_REFUSED(dir.path() / "gone\n", R"(gone\x0a)");
  write_file(dir.path() / "empty.safetensors", "");
  EXPECT_REFUSED(dir.path() / "empty.safetensors", "at least 8 bytes expected, 0 found");
  const fs::path fifo = dir.path() / "fifo.safetensors";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_REFUSED(fifo, "regular file expected, FIFO found");
  EXPECT_REFUSED("/dev/null", "regular file expected, device found");
}

TEST(checkpoint, file_without_read_permission_is_refused) {
  TempDir dir;
  const fs::path file = dir.path() / "m.safetensors";
  write_shard(file, {"a"});
  fs::permissions(dir.path(), fs::perms::all);
  fs::permissions(file, fs::perms::none);
  constexpr uid_t kNobody = 65534;  // root reads everything, so the check runs as somebody else
  const uid_t user = ::geteuid();
  if (user == 0) {
    ASSERT_EQ(::seteuid(kNobody), 0);
  }
  EXPECT_REFUSED(file, "Permission denied");
  ASSERT_EQ(::seteuid(user), 0);
}

/// Three shards and their index, good until a test spoils them.
class ShardedCheckpoint : public ::testing::Test {
 protected:
  void SetUp() override {
    write_shard(dir_.path() / kShard1, {"a.weight", "b.weight"}, 1);
    write_shard(dir_.path() / kShard2, {"a.scale"}, 2);
    write_shard(dir_.path() / kShard3, {"b.scale"}, 3);
    write_index(dir_.path() / kIndexName, map_);
  }
  fs::path path(const char* name) const { return dir_.path() / name; }
  void rewrite_index() { write_index(path(kIndexName), map_); }

  TempDir dir_;
  std::map<std::string, std::string> map_ = {
      {"a.weight", kShard1}, {"b.weight", kShard1}, {"a.scale", kShard2}, {"b.scale", kShard3}};
};

TEST_F(ShardedCheckpoint, opens_by_folder_and_by_index) {
  for (const fs::path& opened : {dir_.path(), path(kIndexName)}) {
    const Checkpoint checkpoint = Checkpoint::open(opened);
    EXPECT_EQ(checkpoint.tensors().size(), 4u);
    EXPECT_EQ(checkpoint.files().size(), 3u);
    EXPECT_EQ(checkpoint.directory(), dir_.path());
    EXPECT_EQ(checkpoint.at("b.scale").file, path(kShard3));
    EXPECT_EQ(*checkpoint.at("a.scale").view.data, std::byte{2});
    EXPECT_EQ(checkpoint.metadata().at("from"), kShard1);
  }
}

TEST_F(ShardedCheckpoint, opens_an_index_of_another_name) {
  fs::rename(path(kIndexName), path("other.safetensors.index.json"));
  EXPECT_EQ(Checkpoint::open(path("other.safetensors.index.json")).tensors().size(), 4u);
}

TEST_F(ShardedCheckpoint, opens_one_shard_alone) {
  EXPECT_EQ(Checkpoint::open(path(kShard1)).tensors().size(), 2u);
}

TEST_F(ShardedCheckpoint, files_outside_the_index_do_not_count) {
  write_shard(path("consolidated.safetensors"), {"a.weight", "x"});
  write_file(path("broken.safetensors"), "broken");
  const Checkpoint checkpoint = Checkpoint::open(dir_.path());
  EXPECT_EQ(checkpoint.files().size(), 3u);
  EXPECT_EQ(checkpoint.find("x"), nullptr);
}

TEST_F(ShardedCheckpoint, case_070_missing_shard_is_an_incomplete_download) {
  fs::remove(path(kShard2));
  EXPECT_REFUSED(dir_.path(), std::string(kShard2) + ": missing, but " + kIndexName + " lists it");
  EXPECT_REFUSED(dir_.path(), "1 of 3 files missing: incomplete download?");
}

TEST_F(ShardedCheckpoint, case_070_missing_shard_is_found_before_any_file_is_read) {
  write_file(path(kShard1), "broken");
  fs::remove(path(kShard3));
  EXPECT_REFUSED(dir_.path(), std::string(kShard3) + ": missing");
}

TEST_F(ShardedCheckpoint, case_070_folder_with_a_shard_name_is_not_a_shard) {
  fs::remove(path(kShard2));
  fs::create_directory(path(kShard2));
  EXPECT_REFUSED(dir_.path(), std::string(kShard2) + ": regular file expected, folder found");
}

TEST_F(ShardedCheckpoint, case_069_cut_shard_is_refused_by_name) {
  fs::resize_file(path(kShard1), fs::file_size(path(kShard1)) - 1);
  EXPECT_REFUSED(dir_.path(), std::string(kShard1) + ": 2 data bytes expected, 1 found");
}

TEST_F(ShardedCheckpoint, tensor_mapped_to_another_shard_is_refused) {
  write_shard(path(kShard3), {"a.scale", "b.scale"}, 3);
  EXPECT_REFUSED(dir_.path(),
                 std::string(kShard3) + ": tensor \"a.scale\": the index maps it to " + kShard2);
}

TEST_F(ShardedCheckpoint, tensor_outside_the_index_is_refused) {
  map_.erase("b.weight");
  rewrite_index();
  EXPECT_REFUSED(dir_.path(), std::string(kShard1) + ": tensor \"b.weight\": not in the index");
}

TEST_F(ShardedCheckpoint, tensor_that_its_shard_lacks_is_refused) {
  map_["c.weight"] = kShard2;
  rewrite_index();
  EXPECT_REFUSED(dir_.path(), std::string(kShard2) + ": tensor \"c.weight\": expected here by " +
                                  kIndexName + ", not found");
}

TEST_F(ShardedCheckpoint, file_names_that_leave_the_folder_are_refused) {
  for (const char* name : {"", ".", "..", "../x.safetensors", "/x.safetensors", "sub/x.safetensors",
                           "sub\\x.safetensors", "./x.safetensors"}) {
    map_["a.scale"] = name;
    rewrite_index();
    EXPECT_REFUSED(dir_.path(), "tensor \"a.scale\": plain file name expected");
  }
  map_["a.scale"] = std::string("x.safetensors\0y", 15);
  rewrite_index();
  EXPECT_REFUSED(dir_.path(), R"(plain file name expected, "x.safetensors\x00y" found)");
}

TEST(shard_index, broken_text_is_refused) {
  const std::pair<const char*, const char*> kCases[] = {
      {"", "'{' expected, end of text found"},
      {"[]", "'{' expected, '[' found"},
      {"{}", "\"weight_map\" is missing"},
      {R"({"weight_map":{}})", "\"weight_map\" is empty"},
      {R"({"weight_map":[]})", "'{' expected"},
      {R"({"weight_map":{"a":1}})", "string expected, '1' found"},
      {R"({"weight_map":{"a":"x","a":"x"}})", "tensor \"a\" appears twice"},
      {R"({"weight_map":{"a":"x"},"weight_map":{"a":"x"}})", "\"weight_map\" appears twice"},
      {R"({"metadata":{},"metadata":{},"weight_map":{"a":"x"}})", "\"metadata\" appears twice"},
      {R"({"metadata":{"total_size":1,"total_size":2},"weight_map":{"a":"x"}})",
       "\"total_size\" appears twice"},
      {R"({"metadata":{"total_size":01},"weight_map":{"a":"x"}})", "number"},
      {R"({"metadata":{"total_size":1.},"weight_map":{"a":"x"}})", "number"},
      {R"({"metadata":{"total_size":tru},"weight_map":{"a":"x"}})", "value expected"},
      {R"({"weight_map":{"a":"x"}} x)", "end of text expected, 'x' found"},
      {R"({"weight_map":{"a":"x"})", "'}' expected, end of text found"},
  };
  for (const auto& [text, words] : kCases) {
    try {
      checkpoint::parse_shard_index(text, "i.json");
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      const std::string message = error.what();
      EXPECT_NE(message.find(words), std::string::npos) << text << "\n" << message;
      EXPECT_TRUE(message.starts_with("i.json: ")) << message;
    }
  }
}

TEST(shard_index, deep_nesting_is_refused) {
  const std::string text = R"({"metadata":)" + std::string(100'000, '[');
  EXPECT_THROW(checkpoint::parse_shard_index(text, "i.json"), Error);
}

TEST(shard_index, other_members_are_passed_over) {
  const auto map = checkpoint::parse_shard_index(
      "\n{\"metadata\": {\"total_size\": -1.5e+3, \"x\": [true, false, null, {}, [], \"\"]},\r\n"
      "\t\"weight_map\": {\"a\": \"x.safetensors\"}, \"more\": 0}\n",
      "i.json");
  EXPECT_EQ(map, (checkpoint::WeightMap{{"a", "x.safetensors"}}));
}

/// The line of /proc/self/maps that covers `address`.
std::string mapping_of(const void* address) {
  std::ifstream maps("/proc/self/maps");
  const auto value = reinterpret_cast<std::uintptr_t>(address);
  for (std::string line; std::getline(maps, line);) {
    std::size_t dash = 0;
    const std::uintptr_t begin = std::stoull(line, &dash, 16);
    if (begin <= value && value < std::stoull(line.substr(dash + 1), nullptr, 16)) return line;
  }
  return "";
}

std::size_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  std::size_t total = 0;
  std::size_t resident = 0;
  statm >> total >> resident;
  return resident * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

TEST(checkpoint, opening_does_not_copy) {
  constexpr std::size_t kGiB = std::size_t{1} << 30;
  constexpr std::size_t kMiB = std::size_t{1} << 20;
  TempDir dir;
  const fs::path file = dir.path() / "sparse.safetensors";
  write_file(file,
             testing::raw_safetensors(
                 R"({"w":{"dtype":"U8","shape":[1024,1048576],"data_offsets":[0,1073741824]}})"));
  fs::resize_file(file, fs::file_size(file) + kGiB);
  const std::size_t before = resident_bytes();
  const Checkpoint checkpoint = Checkpoint::open(file);
  EXPECT_LT(resident_bytes(), before + 16 * kMiB);
  const TensorView& view = checkpoint.at("w").view;
  ASSERT_EQ(view.size_bytes, kGiB);
  for (const std::byte* address : {view.data, view.data + kGiB - 1}) {
    const std::string mapping = mapping_of(address);
    EXPECT_NE(mapping.find(file.string()), std::string::npos) << mapping;
    EXPECT_NE(mapping.find(" r--"), std::string::npos) << mapping;
  }
}

}  // namespace
}  // namespace deepinfer
