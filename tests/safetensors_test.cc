// What the safetensors parser must accept, and what the views show. Refusals have their own file.
#include "checkpoint/safetensors.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "deepinfer/checkpoint.h"
#include "safetensors_builder.h"

namespace deepinfer::checkpoint {
namespace {

using testing::raw_safetensors;
using testing::SafetensorsBuilder;
using Bytes = std::vector<std::byte>;

Bytes zeros(std::size_t count) { return Bytes(count); }

Safetensors parse(const Bytes& file) { return parse_safetensors(file, "m.safetensors"); }

TEST(safetensors, case_074_data_at_odd_addresses_is_viewed_in_place) {
  const std::vector<float> scale = {1.5f, -2.0f};
  const Bytes code = {std::byte{0x38}, std::byte{0xb8}, std::byte{0x7e}};
  const Bytes file = SafetensorsBuilder()
                         .odd_data_start()
                         .add("scale", DType::kF32, {2}, scale)
                         .add("w", DType::kF8E4m3, {1, 3}, code)
                         .to_bytes();
  const Safetensors parsed = parse(file);
  ASSERT_EQ(parsed.tensors.size(), 2u);
  const TensorView& view = parsed.tensors[0].view;
  EXPECT_EQ((view.data - file.data()) % 2, 1);
  EXPECT_EQ(std::memcmp(view.data, scale.data(), 8), 0);
  EXPECT_EQ(parsed.tensors[1].view.data, view.data + 8);
  EXPECT_EQ(std::memcmp(parsed.tensors[1].view.data, code.data(), 3), 0);
}

TEST(safetensors, case_075_f4_counts_elements_and_stores_bytes) {
  const Bytes file = SafetensorsBuilder().add("w", DType::kF4, {2, 8}, zeros(8)).to_bytes();
  const Safetensors parsed = parse(file);
  EXPECT_EQ(parsed.tensors[0].view.dtype, DType::kF4);
  EXPECT_EQ(parsed.tensors[0].view.shape, (std::vector<std::int64_t>{2, 8}));
  EXPECT_EQ(parsed.tensors[0].view.size_bytes, 8u);
  const Bytes scale_file =
      SafetensorsBuilder().add("scale", DType::kF8E8m0, {2, 1}, zeros(2)).to_bytes();
  EXPECT_EQ(parse(scale_file).tensors[0].view.dtype, DType::kF8E8m0);
}

TEST(safetensors, case_075_bytes_load_as_the_file_does) {
  const SafetensorsBuilder builder = SafetensorsBuilder()
                                         .add("w", DType::kF4, {2, 8}, zeros(8))
                                         .add("scale", DType::kF8E8m0, {2, 1}, zeros(2))
                                         .metadata("format", "pt");
  const testing::TempDir dir;
  const std::filesystem::path path = dir.path() / "m.safetensors";
  builder.write(path);
  const Bytes bytes = builder.to_bytes();
  const Checkpoint from_file = Checkpoint::open(path);
  const Checkpoint from_bytes = Checkpoint::from_bytes(bytes, path);
  EXPECT_EQ(from_bytes.metadata(), from_file.metadata());
  EXPECT_EQ(from_bytes.directory(), from_file.directory());
  EXPECT_EQ(from_bytes.file_bytes(), from_file.file_bytes());
  ASSERT_EQ(from_bytes.tensors().size(), from_file.tensors().size());
  for (const Tensor& tensor : from_bytes.tensors()) {
    const TensorView& other = from_file.at(tensor.name).view;
    EXPECT_EQ(tensor.file, path);
    EXPECT_EQ(tensor.view.dtype, other.dtype);
    EXPECT_EQ(tensor.view.shape, other.shape);
    ASSERT_EQ(tensor.view.size_bytes, other.size_bytes);
    EXPECT_EQ(std::memcmp(tensor.view.data, other.data, other.size_bytes), 0);
    EXPECT_TRUE(tensor.view.data >= bytes.data() && tensor.view.data < bytes.data() + bytes.size());
  }
}

TEST(safetensors, header_without_tensors_works) {
  for (const char* header : {"{}", "{ }", "{\n\t}   ", R"({"__metadata__":{}})"}) {
    const Safetensors parsed = parse(raw_safetensors(header));
    EXPECT_TRUE(parsed.tensors.empty());
    EXPECT_TRUE(parsed.metadata.empty());
  }
}

TEST(safetensors, scalars_and_empty_tensors_work) {
  const Bytes file = SafetensorsBuilder()
                         .add("empty_first", DType::kF32, {0, 3}, zeros(0))
                         .add("scalar", DType::kF64, {}, zeros(8))
                         .add("empty_middle", DType::kF4, {2, 0}, zeros(0))
                         .add("one", DType::kU8, {1, 1, 1}, zeros(1))
                         .add("empty_last", DType::kBf16, {0}, zeros(0))
                         .to_bytes();
  const Safetensors parsed = parse(file);
  ASSERT_EQ(parsed.tensors.size(), 5u);
  std::uint64_t total = 0;
  for (const SafetensorsEntry& tensor : parsed.tensors) total += tensor.view.size_bytes;
  EXPECT_EQ(total, 9u);
}

TEST(safetensors, data_order_is_free_and_members_come_in_any_order) {
  const std::string header = R"({"b":{"data_offsets":[4,8],"shape":[4],"dtype":"U8"},)"
                             R"("a":{"shape":[4],"dtype":"I8","data_offsets":[0,4]}})";
  const Safetensors parsed = parse(raw_safetensors(header, zeros(8)));
  ASSERT_EQ(parsed.tensors.size(), 2u);
  EXPECT_EQ(parsed.tensors[0].name, "a");
  EXPECT_EQ(parsed.tensors[1].name, "b");
}

TEST(safetensors, all_string_escapes_are_resolved) {
  const std::string header =
      R"({"__metadata__":{"k":"\"\\\/\b\f\n\r\t\u0041\u00e9\u20ac\ud83d\uDE00\u0000"}})";
  const std::string expected("\"\\/\b\f\n\r\tA\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\0", 19);
  EXPECT_EQ(parse(raw_safetensors(header)).metadata.at("k"), expected);
}

TEST(safetensors, plain_utf8_names_are_kept) {
  const std::string name = "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\x7f";
  const Bytes file = SafetensorsBuilder().add(name, DType::kU8, {1}, zeros(1)).to_bytes();
  EXPECT_EQ(parse(file).tensors.at(0).name, name);
}

TEST(safetensors, empty_tensor_may_share_its_offset_and_be_listed_last) {
  const std::string header = R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                             R"("z":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})";
  EXPECT_EQ(parse(raw_safetensors(header, zeros(4))).tensors.size(), 2u);
}

TEST(safetensors, largest_allowed_size_is_read) {
  const std::vector<std::int64_t> shape = {0, 281474976710655};
  const Bytes file = SafetensorsBuilder().add("w", DType::kU8, shape, zeros(0)).to_bytes();
  EXPECT_EQ(parse(file).tensors.at(0).view.shape, shape);
}

TEST(safetensors, every_data_type_is_read_by_its_name) {
  for (int i = 0; i <= static_cast<int>(DType::kU64); ++i) {
    const DType dtype = static_cast<DType>(i);
    const Bytes data = zeros(static_cast<std::size_t>(dtype_bits(dtype)));  // of 8 elements
    const Bytes file = SafetensorsBuilder().add("w", dtype, {1, 8}, data).to_bytes();
    EXPECT_EQ(parse(file).tensors.at(0).view.dtype, dtype);
    EXPECT_EQ(dtype_from_name(dtype_name(dtype)), dtype);
  }
  EXPECT_FALSE(dtype_from_name("").has_value());
  EXPECT_FALSE(dtype_from_name("F8").has_value());
}

TEST(safetensors, data_types_have_their_published_names_and_sizes) {
  EXPECT_EQ(dtype_name(DType::kF8E4m3), "F8_E4M3");
  EXPECT_EQ(dtype_name(DType::kF8E8m0), "F8_E8M0");
  EXPECT_EQ(dtype_name(DType::kF4), "F4");
  EXPECT_EQ(dtype_name(DType::kBf16), "BF16");
  EXPECT_EQ(dtype_bits(DType::kF4), 4);
  EXPECT_EQ(dtype_bits(DType::kF6E3m2), 6);
  EXPECT_EQ(dtype_bits(DType::kBool), 8);
  EXPECT_EQ(dtype_bits(DType::kU16), 16);
  EXPECT_EQ(dtype_bits(DType::kF32), 32);
  EXPECT_EQ(dtype_bits(DType::kC64), 64);
}

TEST(safetensors, shape_string_reads_like_a_list) {
  EXPECT_EQ(shape_string({}), "[]");
  EXPECT_EQ(shape_string({2, 0, 576}), "[2, 0, 576]");
}

// The largest published checkpoint has some 96,000 tensors. The limit is loose, for slow machines
// and sanitizers; a quadratic parser would need minutes.
/// Prints its time (some 0.12 s in a release build); a quadratic parser would take minutes.
TEST(safetensors, header_of_96000_tensors) {
  SafetensorsBuilder builder;
  for (int i = 0; i < 96'000; ++i) {
    // Names in an order that is not that of the data.
    const std::string name = "model.layers." + std::to_string(i * 7919 % 96'000) + ".weight";
    builder.add(name, DType::kU8, {1, 1}, zeros(1));
  }
  const Bytes file = builder.to_bytes();
  const auto start = std::chrono::steady_clock::now();
  const Safetensors parsed = parse(file);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  EXPECT_EQ(parsed.tensors.size(), 96'000u);
  std::printf("96,000 tensors parsed in %.2f s\n", seconds.count());
}

}  // namespace
}  // namespace deepinfer::checkpoint
