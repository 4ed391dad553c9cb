// verify() of stacks, of grids with padding and of NVFP4: blocks end with their matrix, every
// matrix is read and compared, and what cannot run is said.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "deepinfer/verify.h"
#include "random_data.h"
#include "safetensors_builder.h"
#include "verify_report.h"

namespace deepinfer {
namespace {

using test::BytePlan;
using test::Bytes;
using test::check;
using test::check_bytes;
using test::find;
using test::Index;
using test::kOne;
using test::kScale1;
using test::Random;
using testing::SafetensorsBuilder;
using testing::TempDir;

/// All kinds of e4m3fn and e8m0 findings of random bytes, counted one by one, in a stack of
/// `groups` matrices [n, 1100] with a scale for each row and 32 columns.
void expect_counts_of_a_plain_loop(std::int64_t groups, std::int64_t n) {
  constexpr std::int64_t kK = 1100;  // ragged
  constexpr std::int64_t kColumns = 35;
  Random random(7);
  BytePlan codes(groups * n, kK, 0);
  BytePlan scales(groups * n, kColumns, 0);
  for (std::uint8_t& byte : codes.bytes) {
    if (random.below(97) == 0) byte = static_cast<std::uint8_t>(random.next());
  }
  for (std::uint8_t& byte : scales.bytes) {
    byte = static_cast<std::uint8_t>(random.below(31) == 0 ? random.next() : 120);
  }
  std::map<FindingKind, std::int64_t> expected;
  for (const std::uint8_t byte : codes.bytes) {
    expected[FindingKind::kNanCode] += (byte & 0x7F) == 0x7F ? 1 : 0;
  }
  for (const std::uint8_t byte : scales.bytes) {
    expected[FindingKind::kNanScale] += byte == 255 ? 1 : 0;
    expected[FindingKind::kZeroScale] += byte == 0 ? 1 : 0;
  }
  for (std::int64_t row = 0; row < groups * n; ++row) {
    for (std::int64_t block = 0; block < kColumns; ++block) {
      bool zero = true;
      for (std::int64_t c = 32 * block; c < std::min(kK, 32 * block + 32); ++c) {
        zero = zero && (codes.at(row, c) & 0x7F) == 0;
      }
      expected[FindingKind::kZeroBlock] += zero ? 1 : 0;
    }
  }
  for (std::int64_t group = 0; group < groups; ++group) {
    for (std::int64_t first = 0; first < n; first += 32) {
      for (std::int64_t block = 0; block < kColumns; ++block) {
        std::set<std::uint8_t> values;
        for (std::int64_t row = first; row < std::min(n, first + 32); ++row) {
          values.insert(scales.at(group * n + row, block));
        }
        expected[FindingKind::kScalesDiffer] += values.size() > 1 ? 1 : 0;
      }
    }
  }
  const TempDir dir;
  SafetensorsBuilder()
      .odd_data_start()
      .add("w.weight", DType::kF8E4m3, {groups, n, kK}, codes.bytes)
      .add("w.weight_scale", DType::kU8, {groups, n, kColumns}, scales.bytes)
      .write(dir.path() / "model.safetensors");
  VerifyOptions options;
  options.budget = std::chrono::milliseconds(0);
  std::vector<Index> places;
  for (const int threads : {1, 2, 5}) {
    const VerifyReport report =
        verify(Context({.num_threads = threads, .isa = {}}), dir.path(), options);
    std::vector<Index> now;
    for (const Finding& finding : report.findings) {
      for (const FindingPlace& place : finding.first) now.push_back(place.index);
      EXPECT_EQ(finding.count, expected.at(finding.kind)) << static_cast<int>(finding.kind);
      EXPECT_GT(finding.count, 4);
      EXPECT_EQ(finding.first.size(), 4U);
    }
    EXPECT_EQ(report.findings.size(), expected.size());
    if (places.empty()) places = now;
    EXPECT_EQ(places, now);
  }
}

// Matrices of less and of more than a piece of 1 MiB, and one that is many pieces.
TEST(verify_stacks_test, counts_are_those_of_a_plain_loop_for_any_number_of_threads) {
  expect_counts_of_a_plain_loop(1, 3001);
  expect_counts_of_a_plain_loop(2, 1500);
  expect_counts_of_a_plain_loop(81, 37);
}

/// A stack "w" of `groups` fp8 matrices in blocks of `block_n` x 32, scales in e8m0.
void write_stack(const TempDir& dir, std::int64_t groups, std::int64_t n, std::int64_t k,
                 std::int64_t block_n, const Bytes& codes, const Bytes& scales) {
  SafetensorsBuilder()
      .add("w.weight", DType::kF8E4m3, {groups, n, k}, codes)
      .add("w.weight_scale", DType::kF8E8m0, {groups, (n + block_n - 1) / block_n, k / 32}, scales)
      .write(dir.path() / "model.safetensors");
}

TEST(verify_stacks_test, blocks_of_a_stack_end_with_their_matrix) {
  const TempDir dir;
  Bytes codes(3 * 40 * 64, kOne);  // blocks of 32 and 8 rows in each of three matrices
  const auto zero = [&](std::int64_t group, std::int64_t first, std::int64_t last,
                        std::int64_t column) {
    for (std::int64_t row = first; row < last; ++row) {
      const auto at = codes.begin() + (group * 40 + row) * 64 + column;
      std::fill(at, at + 32, std::uint8_t{0});
    }
  };
  zero(0, 0, 31, 0);  // nearly a block
  zero(1, 32, 40, 32);
  zero(2, 0, 32, 0);
  write_stack(dir, 3, 40, 64, 32, codes, Bytes(std::size_t{3 * 2 * 2}, kScale1));
  const VerifyReport report = check_bytes(dir.path());
  EXPECT_TRUE(report.ok());
  const Finding* finding = find(report, FindingKind::kZeroBlock, "w.weight");
  ASSERT_NE(finding, nullptr);
  EXPECT_EQ(finding->count, 2);
  EXPECT_EQ(finding->first[0].index, (Index{1, 1, 1}));
  EXPECT_EQ(finding->first.back().index, (Index{2, 0, 0}));
}

TEST(verify_stacks_test, scales_of_two_matrices_of_a_stack_may_differ) {
  const TempDir dir;
  Bytes scales(2 * 40 * 2, kScale1);
  std::fill(scales.begin() + 40 * 2, scales.end(), std::uint8_t{126});
  write_stack(dir, 2, 40, 64, 1, Bytes(2 * 40 * 64, kOne), scales);
  EXPECT_TRUE(check_bytes(dir.path()).findings.empty());
  scales[(40 + 35) * 2 + 1] = 125;
  write_stack(dir, 2, 40, 64, 1, Bytes(2 * 40 * 64, kOne), scales);
  const VerifyReport report = check_bytes(dir.path());
  const Finding* finding = find(report, FindingKind::kScalesDiffer, "w.weight_scale");
  ASSERT_NE(finding, nullptr);
  EXPECT_EQ(finding->count, 1);
  EXPECT_EQ(finding->first[0].index, (Index{1, 35, 1}));
}

TEST(verify_stacks_test, a_matrix_with_a_bad_scale_is_left_out_and_the_rest_of_its_stack_compared) {
  const TempDir dir;
  std::vector<std::uint32_t> scales(3 * 2 * 2, 0x3F800000U);
  scales[4 + 1] = 0x7FC00000U;
  SafetensorsBuilder()
      .add("w.weight", DType::kF8E4m3, {3, 40, 64}, Bytes(3 * 40 * 64, kOne))
      .add("w.weight_scale", DType::kF32, {3, 2, 2}, scales)
      .write(dir.path() / "model.safetensors");
  const VerifyReport report = check(dir.path());
  ASSERT_EQ(report.findings.size(), 1U);
  EXPECT_EQ(report.findings[0].first[0].index, (Index{1, 0, 1}));
  EXPECT_EQ(report.bits.rows, 120);
  EXPECT_EQ(report.bits.rows_compared, 80);
  EXPECT_EQ(report.formats[0].rows, 120);
  EXPECT_EQ(report.formats[0].rows_compared, 80);
}

/// DeepGEMM's I32 of four e8m0 bytes: rows end in padding, which is no scale.
TEST(verify_stacks_test, packed_scales_are_read_byte_by_byte_without_their_padding) {
  const TempDir dir;
  constexpr std::int64_t kN = 40;
  constexpr std::int64_t kStride = 8;  // 5 scales for k = 160, then 3 of padding
  Bytes scales(kN * kStride, 0);
  for (std::int64_t i = 0; i < kN * kStride; ++i) {
    scales[static_cast<std::size_t>(i)] = i % kStride < 5 ? kScale1 : 0;
  }
  scales[3 * kStride + 4] = 255;
  scales[3 * kStride + 5] = 255;  // padding
  testing::write_file(dir.path() / "config.json", std::string_view(R"({"expert_dtype": "fp4",
      "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}})"));
  SafetensorsBuilder()
      .add("a.experts.0.w.weight", DType::kI8, {kN, 80}, Bytes(kN * 80, 0x11))
      .add("a.experts.0.w.scale", DType::kI32, {kN, kStride / 4}, scales)
      .write(dir.path() / "model.safetensors");
  const VerifyReport report = check_bytes(dir.path());
  EXPECT_TRUE(report.problems.empty());
  ASSERT_EQ(report.findings.size(), 2U);
  const FindingKind kinds[] = {FindingKind::kNanScale, FindingKind::kScalesDiffer};
  for (std::size_t i = 0; i < 2; ++i) {
    const Finding& finding = report.findings[i];
    EXPECT_EQ(finding.kind, kinds[i]);
    EXPECT_EQ(finding.count, 1);
    EXPECT_EQ(finding.first[0].index, (Index{3, 4}));
    EXPECT_EQ(finding.first[0].bits, 255U);
    EXPECT_EQ(finding.first[0].width, 8);
  }
}

// ---- NVFP4.

/// [4, 32] of NVFP4 beside a bf16 weight [20, 40].
VerifyReport check_nvfp4(const Bytes& scales, std::uint32_t tensor_scale) {
  const TempDir dir;
  testing::write_file(dir.path() / "config.json", std::string_view(R"({"quantization_config":
      {"quant_method": "modelopt", "quant_algo": "NVFP4"}})"));
  Bytes codes(std::size_t{4 * 16}, 0x11);
  std::fill(codes.begin() + 24, codes.begin() + 32, std::uint8_t{0x80});  // row 1, block 1
  SafetensorsBuilder()
      .add("a.weight", DType::kU8, {4, 16}, codes)
      .add("a.weight_scale", DType::kF8E4m3, {4, 2}, scales)
      .add("a.weight_scale_2", DType::kF32, {}, std::vector<std::uint32_t>{tensor_scale})
      .add("b.weight", DType::kBf16, {20, 40}, std::vector<std::uint16_t>(800, 0x3F80))
      .write(dir.path() / "model.safetensors");
  return check(dir.path());
}

constexpr std::uint32_t kOneF32 = 0x3F800000;

TEST(verify_stacks_test, what_cannot_run_is_named_and_counts_as_not_compared) {
  const VerifyReport report = check_nvfp4(Bytes(8, 0x7E), kOneF32);
  EXPECT_TRUE(report.ok());
  ASSERT_EQ(report.cannot_run.size(), 1U);
  EXPECT_EQ(report.cannot_run[0].tensor, "a.weight");
  EXPECT_NE(report.cannot_run[0].reason.find("NVFP4"), std::string::npos);
  EXPECT_EQ(report.bits.rows, 24);
  EXPECT_EQ(report.bits.rows_compared, 20);
  ASSERT_EQ(report.formats.size(), 2U);  // the second scale is of the weight, not "other"
  EXPECT_EQ(report.formats[1].format, "nvfp4");
  EXPECT_EQ(report.formats[1].bytes, 4U * 16 + 8 + 4);
  EXPECT_EQ(report.formats[1].rows_compared, 0);
  ASSERT_EQ(report.findings.size(), 1U);
  EXPECT_EQ(report.findings[0].kind, FindingKind::kZeroBlock);
  EXPECT_EQ(report.findings[0].first[0].index, (Index{1, 1}));
}

TEST(verify_stacks_test, nvfp4_scales_are_e4m3_and_the_second_one_is_f32) {
  Bytes scales(8, 0x38);
  scales[1] = 0x7F;
  scales[4] = 0xFF;
  scales[5] = 0xB8;  // -1
  scales[6] = 0;
  const VerifyReport bytes = check_nvfp4(scales, kOneF32);
  EXPECT_FALSE(bytes.ok());
  const Finding* nan = find(bytes, FindingKind::kNanScale, "a.weight_scale");
  ASSERT_NE(nan, nullptr);
  EXPECT_EQ(nan->count, 2);
  EXPECT_EQ(nan->first[0].index, (Index{0, 1}));
  EXPECT_EQ(nan->first[1].index, (Index{2, 0}));
  ASSERT_NE(find(bytes, FindingKind::kBadScale, "a.weight_scale"), nullptr);
  EXPECT_EQ(find(bytes, FindingKind::kBadScale, "a.weight_scale")->count, 1);
  ASSERT_NE(find(bytes, FindingKind::kZeroScale, "a.weight_scale"), nullptr);
  const std::map<std::uint32_t, FindingKind> bad = {{0x7FC00000U, FindingKind::kNanScale},
                                                    {0x7F800000U, FindingKind::kBadScale},
                                                    {0xBF800000U, FindingKind::kBadScale}};
  for (const auto& [bits, kind] : bad) {
    const VerifyReport report = check_nvfp4(Bytes(8, 0x38), bits);
    EXPECT_FALSE(report.ok());
    ASSERT_NE(find(report, kind, "a.weight_scale_2"), nullptr) << bits;
    EXPECT_EQ(find(report, kind, "a.weight_scale_2")->first[0].index, Index{});
  }
}

}  // namespace
}  // namespace deepinfer
