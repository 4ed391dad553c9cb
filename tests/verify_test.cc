// verify(): what is planted in a checkpoint is counted and named, and a wrong result is found on
// whichever axis it depends. The bytes are counted again here, element by element.
#include "deepinfer/verify.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "deepinfer/error.h"
#include "deepinfer/scan.h"
#include "random_data.h"
#include "safetensors_builder.h"
#include "tiny_llama.h"
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
using testing::SafetensorsBuilder;
using testing::TempDir;
using testing::TinyLlama;

/// One fp8 weight "w" and its scales.
VerifyReport check_fp8(const BytePlan& codes, const BytePlan& scales) {
  const TempDir dir;
  SafetensorsBuilder()
      .add("w.weight", DType::kF8E4m3, codes.shape, codes.bytes)
      .add("w.weight_scale", DType::kF8E8m0, scales.shape, scales.bytes)
      .write(dir.path() / "model.safetensors");
  return check_bytes(dir.path());
}

// ---- Bytes.

TEST(verify_test, a_good_checkpoint_has_no_findings) {
  const VerifyReport report = check_fp8({64, 96, kOne}, {2, 3, kScale1});
  EXPECT_TRUE(report.ok());
  EXPECT_TRUE(report.findings.empty());
  ASSERT_EQ(report.formats.size(), 1U);
  EXPECT_EQ(report.formats[0].format, "fp8-32x32");
  EXPECT_EQ(report.formats[0].bytes, 64U * 96 + 6);
}

TEST(verify_test, case_001_nan_codes_are_named) {
  BytePlan codes(64, 96, kOne);
  codes.at(5, 7) = 0x7F;
  codes.at(63, 95) = 0xFF;
  const VerifyReport report = check_fp8(codes, {2, 3, kScale1});
  EXPECT_FALSE(report.ok());
  const Finding* finding = find(report, FindingKind::kNanCode, "w.weight");
  ASSERT_NE(finding, nullptr);
  EXPECT_EQ(finding->count, 2);
  ASSERT_EQ(finding->first.size(), 2U);
  EXPECT_EQ(finding->first[0].index, (Index{5, 7}));
  EXPECT_EQ(finding->first[0].bits, 0x7FU);
  EXPECT_EQ(finding->first[1].index, (Index{63, 95}));
  EXPECT_EQ(finding->first[1].bits, 0xFFU);
}

TEST(verify_test, case_006_bytes_0_and_255_are_counted_apart) {
  BytePlan scales(2, 3, kScale1);
  scales.at(0, 2) = 0;
  const VerifyReport zero = check_fp8({64, 96, kOne}, scales);
  EXPECT_TRUE(zero.ok()) << "byte 0 is 2^-127, a number";
  ASSERT_NE(find(zero, FindingKind::kZeroScale, "w.weight_scale"), nullptr);
  scales.at(1, 1) = 255;
  const VerifyReport both = check_fp8({64, 96, kOne}, scales);
  EXPECT_FALSE(both.ok());
  EXPECT_EQ(find(both, FindingKind::kZeroScale, "w.weight_scale")->first[0].index, (Index{0, 2}));
  EXPECT_EQ(find(both, FindingKind::kNanScale, "w.weight_scale")->first[0].index, (Index{1, 1}));
}

TEST(verify_test, case_053_one_nan_scale_in_a_large_tensor_is_named) {
  BytePlan scales(4010, 19, kScale1);
  scales.at(4001, 18) = 0xFF;
  const VerifyReport report = check_fp8({4010, 600, kOne}, scales);
  EXPECT_FALSE(report.ok());
  const Finding* finding = find(report, FindingKind::kNanScale, "w.weight_scale");
  ASSERT_NE(finding, nullptr);
  EXPECT_EQ(finding->count, 1);
  EXPECT_EQ(finding->first[0].index, (Index{4001, 18}));
  EXPECT_EQ(finding->first[0].bits, 0xFFU);
  const Finding* differ = find(report, FindingKind::kScalesDiffer, "w.weight_scale");
  ASSERT_NE(differ, nullptr);
  EXPECT_EQ(differ->count, 1);
  EXPECT_EQ(differ->first[0].index, (Index{4001, 18}));
}

TEST(verify_test, zero_blocks_are_remarks_with_their_place_in_the_grid) {
  BytePlan codes(70, 80, kOne);  // blocks of 32, 32, 6 rows and 32, 32, 16 columns
  for (std::int64_t row = 64; row < 70; ++row) {
    for (std::int64_t column = 64; column < 80; ++column) {
      codes.at(row, column) = column % 2 == 0 ? 0x00 : 0x80;
    }
  }
  for (std::int64_t row = 0; row < 32; ++row) {
    for (std::int64_t column = 0; column < 32; ++column) codes.at(row, column) = 0;
  }
  codes.at(31, 31) = 1;  // nearly
  const VerifyReport report = check_fp8(codes, {3, 3, kScale1});
  EXPECT_TRUE(report.ok());
  const Finding* finding = find(report, FindingKind::kZeroBlock, "w.weight");
  ASSERT_NE(finding, nullptr);
  EXPECT_EQ(finding->count, 1);
  EXPECT_EQ(finding->first[0].index, (Index{2, 2}));
}

TEST(verify_test, rows_that_disagree_are_remarks) {
  BytePlan scales(70, 2, kScale1);
  scales.at(33, 1) = 126;
  scales.at(34, 1) = 125;
  scales.at(69, 0) = 1;
  for (std::int64_t row = 0; row < 32; ++row) scales.at(row, 0) = 100;  // all 32: they agree
  const VerifyReport report = check_fp8({70, 64, kOne}, scales);
  EXPECT_TRUE(report.ok());
  const Finding* finding = find(report, FindingKind::kScalesDiffer, "w.weight_scale");
  ASSERT_NE(finding, nullptr);
  EXPECT_EQ(finding->count, 2);
  EXPECT_EQ(finding->first[0].index, (Index{33, 1}));
  EXPECT_EQ(finding->first[1].index, (Index{69, 0}));
}

TEST(verify_test, a_scale_grid_that_does_not_fit_is_a_problem) {
  const VerifyReport report = check_fp8({64, 96, kOne}, {2, 2, kScale1});
  EXPECT_FALSE(report.ok());
  ASSERT_FALSE(report.problems.empty());
  EXPECT_EQ(report.problems[0].tensor, "w.weight");
}

TEST(verify_test, numbers_that_are_not_finite_are_errors_wherever_they_are) {
  const TempDir dir;
  SafetensorsBuilder()
      .odd_data_start()
      .add("f16", DType::kF16, {3}, std::vector<std::uint16_t>{0x7BFF, 0x7C00, 0xFE00})
      .add("bf16", DType::kBf16, {2, 1, 2}, std::vector<std::uint16_t>{0x7F7F, 0xFF7F, 0, 0xFF80})
      .add("f32", DType::kF32, {2}, std::vector<std::uint32_t>{0x7F7FFFFFU, 0xFFFFFFFFU})
      .add("f64", DType::kF64, {2},
           std::vector<std::uint64_t>{0x7FEFFFFFFFFFFFFFU, 0x7FF0000000000001U})
      .add("complex", DType::kC64, {2}, std::vector<std::uint32_t>{0, 0, 0, 0x7F800000U})
      .add("e5m2", DType::kF8E5m2, {3}, Bytes{0x7B, 0x7C, 0xFF})
      .add("fnuz", DType::kF8E4m3Fnuz, {3}, Bytes{0x7F, 0x80, 0xFF})
      .add("whole", DType::kI32, {1}, std::vector<std::uint32_t>{0xFFFFFFFFU})
      .write(dir.path() / "model.safetensors");
  const VerifyReport report = check_bytes(dir.path());
  EXPECT_FALSE(report.ok());
  const std::map<std::string, std::pair<std::int64_t, Index>> expected = {
      {"f16", {2, {1}}},     {"bf16", {1, {1, 0, 1}}}, {"f32", {1, {1}}},  {"f64", {1, {1}}},
      {"complex", {1, {1}}}, {"e5m2", {2, {1}}},       {"fnuz", {1, {1}}},
  };
  EXPECT_EQ(report.findings.size(), expected.size());
  for (const Finding& finding : report.findings) {
    ASSERT_EQ(expected.count(finding.tensor), 1U) << finding.tensor;
    EXPECT_TRUE(is_error(finding.kind));
    EXPECT_EQ(finding.count, expected.at(finding.tensor).first) << finding.tensor;
    EXPECT_EQ(finding.first[0].index, expected.at(finding.tensor).second) << finding.tensor;
  }
  const Checkpoint checkpoint = Checkpoint::open(dir.path());
  const Scan counted = scan(Context(), checkpoint, WeightMap::build(checkpoint));
  const std::map<std::string, std::pair<std::uint64_t, std::uint64_t>> nan_and_infinite = {
      {"f16", {1, 1}},     {"bf16", {0, 1}}, {"f32", {1, 0}},  {"f64", {1, 0}},
      {"complex", {0, 1}}, {"e5m2", {1, 1}}, {"fnuz", {1, 0}}, {"whole", {0, 0}},
  };
  for (std::size_t i = 0; i < counted.counts.size(); ++i) {
    const std::string& name = checkpoint.tensors()[i].name;
    EXPECT_EQ(std::pair(counted.counts[i].nan, counted.counts[i].infinite),
              nan_and_infinite.at(name))
        << name;
  }
  ASSERT_NE(find(report, FindingKind::kNotFinite, "f32"), nullptr);
  EXPECT_EQ(find(report, FindingKind::kNotFinite, "f32")->first[0].bits, 0xFFFFFFFFU);
  EXPECT_EQ(find(report, FindingKind::kNotFinite, "f32")->first[0].width, 32);
}

TEST(verify_test, float_scales_that_a_weight_refuses_are_named_and_its_rows_not_compared) {
  const TempDir dir;
  const std::vector<std::uint32_t> scales = {0x3F800000U, 0xBF800000U, 0x7F800000U,
                                             0xFFC00000U, 0x80000000U, 0x00000001U};
  SafetensorsBuilder()
      .add("w.weight", DType::kF8E4m3, {64, 96}, Bytes(64 * 96, kOne))
      .add("w.weight_scale_inv", DType::kF32, {2, 3}, scales)
      .add("v.weight", DType::kBf16, {20, 40}, std::vector<std::uint16_t>(800, 0x3F80))
      .write(dir.path() / "model.safetensors");
  const VerifyReport report = check(dir.path());
  EXPECT_FALSE(report.ok());
  const auto found = [&](FindingKind kind) {
    const Finding* finding = find(report, kind, "w.weight_scale_inv");
    return finding == nullptr ? Index{} : finding->first[0].index;
  };
  EXPECT_EQ(found(FindingKind::kBadScale), (Index{0, 1}));
  EXPECT_EQ(find(report, FindingKind::kBadScale, "w.weight_scale_inv")->count, 2);
  EXPECT_EQ(found(FindingKind::kNanScale), (Index{1, 0}));
  EXPECT_EQ(found(FindingKind::kZeroScale), (Index{1, 1}));
  EXPECT_EQ(report.bits.rows, 84);
  EXPECT_EQ(report.bits.rows_compared, 20);
  EXPECT_EQ(report.formats.back().rows_compared, 0);
}

TEST(verify_test, fp4_blocks_of_zeros_are_found) {
  const TempDir dir;
  Bytes codes(4 * 40, 0x11);                                    // [4, 80]: blocks of 32, 32 and 16
  for (std::size_t i = 0; i < 16; ++i) codes[40 + i] = 0x80;    // row 1, block 0: -0 and +0
  for (std::size_t i = 32; i < 40; ++i) codes[120 + i] = 0x08;  // row 3, block 2
  SafetensorsBuilder()
      .add("w.weight_packed", DType::kU8, {4, 40}, codes)
      .add("w.weight_scale", DType::kU8, {4, 3}, Bytes(12, kScale1))
      .write(dir.path() / "model.safetensors");
  const VerifyReport report = check_bytes(dir.path());
  const Finding* finding = find(report, FindingKind::kZeroBlock, "w.weight_packed");
  ASSERT_NE(finding, nullptr);
  EXPECT_EQ(finding->count, 2);
  EXPECT_EQ(finding->first[0].index, (Index{1, 0}));
  EXPECT_EQ(finding->first[1].index, (Index{3, 2}));
}

// ---- Bits.

TEST(verify_test, all_rows_of_every_format_have_the_references_bits) {
  for (const auto kind :
       {TinyLlama::Kind::kBf16, TinyLlama::Kind::kFp8, TinyLlama::Kind::kMxfp4Mixture}) {
    const TempDir dir;
    TinyLlama tiny;
    tiny.kind = kind;
    tiny.write(dir.path());
    VerifyOptions options;
    options.budget.reset();
    const VerifyReport report = check(dir.path(), options);
    EXPECT_TRUE(report.ok());
    EXPECT_EQ(report.bits.differences, 0);
    EXPECT_EQ(report.bits.rows, 70 + 2 * (144 + 48 + 48 + 96 + 168 + 168 + 96));
    EXPECT_EQ(report.bits.rows_compared, report.bits.rows);
    for (const FormatCheck& format : report.formats) {
      EXPECT_EQ(format.rows_compared, format.rows) << format.format;
    }
    EXPECT_GT(report.bits.outputs, 10 * report.bits.rows);
  }
}

TEST(verify_test, a_budget_of_zero_compares_nothing) {
  const TempDir dir;
  TinyLlama{}.write(dir.path());
  const VerifyReport report = check_bytes(dir.path());
  EXPECT_TRUE(report.ok());
  EXPECT_GT(report.bits.rows, 0);
  EXPECT_EQ(report.bits.rows_compared, 0);
  EXPECT_EQ(report.bits.outputs, 0);
}

TEST(verify_test, an_exception_of_progress_ends_either_stage) {
  const TempDir dir;
  TinyLlama{}.write(dir.path());
  struct Stop {};
  for (const VerifyStage wanted : {VerifyStage::kBytes, VerifyStage::kBits}) {
    VerifyOptions options;
    options.progress = [&](VerifyStage stage, double part) {
      EXPECT_GE(part, 0);
      EXPECT_LE(part, 1);
      if (stage == wanted) throw Stop{};
    };
    EXPECT_THROW(check(dir.path(), options), Stop);
  }
}

TEST(verify_test, a_file_that_is_no_checkpoint_is_refused) {
  EXPECT_THROW(check("/nowhere"), Error);
}

}  // namespace
}  // namespace deepinfer
