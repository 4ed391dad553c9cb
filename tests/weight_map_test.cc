// Which tensors make which weight: public fault reports about scales, by their numbers, and every
// way in which configuration, names, data types and shapes can disagree.
#include "deepinfer/weight_map.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "checkpoint_folder.h"
#include "deepinfer/error.h"
#include "safetensors_builder.h"

namespace deepinfer {
namespace {

using testing::Folder;
using testing::SafetensorsBuilder;
using testing::TempDir;
using testing::times_ones;
using testing::write_file;

constexpr std::uint8_t kOneE4m3fn = 0x38;
constexpr const char* kFp8Config =
    R"({"quantization_config": {"quant_method": "fp8", "weight_block_size": [32, 32]}})";

ErrorCode code_of_build(const Checkpoint& checkpoint, std::string* message) {
  try {
    WeightMap::build(checkpoint);
  } catch (const Error& error) {
    *message = error.what();
    return error.code();
  }
  ADD_FAILURE() << "accepted";
  return ErrorCode::kIo;
}

TEST(weight_map_test, case_020_the_scale_is_called_scale) {
  const std::string module = "layers.0.attn.wo_b";
  Folder good(kFp8Config);
  good.add(module + ".weight", DType::kF8E4m3, {64, 32})
      .add(module + ".scale", DType::kF8E8m0, {2, 1});
  const Checkpoint checkpoint = good.open();
  const WeightMap map = WeightMap::build(checkpoint);
  EXPECT_TRUE(map.problems().empty());
  const MappedWeight& weight = map.at(module);
  EXPECT_EQ(weight.format, "fp8-32x32");
  EXPECT_EQ(weight.view.scale_type, ScaleType::kE8m0);
  EXPECT_EQ(weight.scales->name, module + ".scale");

  Folder bare(kFp8Config);
  bare.add(module + ".weight", DType::kF8E4m3, {64, 32});
  const std::string problems = bare.problems();
  EXPECT_HAS(problems, module + ".weight: ");
  for (const char* name : {".weight_scale_inv", ".weight_scale", ".scale"}) {
    EXPECT_HAS(problems, module + name);
  }
  const Checkpoint without = Checkpoint::open(bare.path());
  try {
    WeightMap::build(without).at(module);
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kBadInput);
    EXPECT_HAS(error.what(), "needs scales");
  }
}

TEST(weight_map_test, case_021_scales_and_weights_without_their_other_half_are_both_listed) {
  Folder folder(kFp8Config);
  for (const char* name : {"a", "b", "c"}) {
    folder.add(std::string(name) + ".weight", DType::kF8E4m3, {32, 32});
  }
  for (const char* name : {"a", "b", "lost"}) {
    folder.add(std::string(name) + ".weight_scale_inv", DType::kF32, {1, 1}, 0);
  }
  const Checkpoint checkpoint = folder.open();
  const WeightMap map = WeightMap::build(checkpoint);
  EXPECT_EQ(map.weights().size(), 2u);
  ASSERT_EQ(map.problems().size(), 2u);
  EXPECT_EQ(map.problems()[0].tensor, "c.weight");
  EXPECT_EQ(map.problems()[1].tensor, "lost.weight_scale_inv");
  EXPECT_HAS(map.problems()[1].reason, "without a weight");
}

TEST(weight_map_test, case_024_a_bf16_weight_stays_bf16_whatever_the_config_says) {
  Folder folder(kFp8Config);
  const std::vector<std::uint8_t> bits = {0x80, 0x3F, 0x00, 0xC0, 0x01, 0x02, 0x03, 0x04};
  folder.bytes("model.layers.1.ple.key_proj.weight", DType::kBf16, {2, 2}, bits);
  const Checkpoint checkpoint = folder.open();
  const WeightMap map = WeightMap::build(checkpoint);
  EXPECT_TRUE(map.problems().empty());
  const MappedWeight& weight = map.at("model.layers.1.ple.key_proj");
  EXPECT_EQ(weight.format, "bf16");
  EXPECT_EQ(weight.scales, nullptr);
  EXPECT_EQ(std::memcmp(weight.view.codes, bits.data(), bits.size()), 0);
}

constexpr const char* kExpert = "layers.0.ffn.experts.0.w1";

Folder& add_case_025(Folder& folder) {
  return folder.add(std::string(kExpert) + ".weight", DType::kI8, {64, 32})
      .add(std::string(kExpert) + ".scale", DType::kF8E8m0, {64, 2})
      .add("layers.0.attn.wq_a.weight", DType::kF8E4m3, {64, 64})
      .add("layers.0.attn.wq_a.scale", DType::kF8E8m0, {2, 2});
}

TEST(weight_map_test, case_025_config_says_fp8_and_experts_are_fp4) {
  const std::string block = R"("quant_method": "fp8", "weight_block_size": [32, 32])";
  for (const std::string& config :
       {"{\"quantization_config\": {" + block + R"(, "expert_dtype": "fp4"}})",
        R"({"expert_dtype": "fp4", "quantization_config": {)" + block + "}}",
        R"({"text_config": {"expert_dtype": "fp4", "quantization_config": {)" + block + "}}}"}) {
    Folder folder(config);
    const Checkpoint checkpoint = add_case_025(folder).open();
    const WeightMap map = WeightMap::build(checkpoint);
    EXPECT_TRUE(map.problems().empty()) << config;
    const MappedWeight& expert = map.at(kExpert);
    EXPECT_EQ(expert.format, "mxfp4");
    EXPECT_EQ(expert.view.n, 64);
    EXPECT_EQ(expert.view.k, 64);
    EXPECT_EQ(map.at("layers.0.attn.wq_a").format, "fp8-32x32");
  }
  Folder dense("{\"quantization_config\": {" + block + R"(, "expert_dtype": "fp4"}})");
  dense.add("layers.0.attn.wo.weight", DType::kI8, {64, 32})
      .add("layers.0.attn.wo.scale", DType::kF8E8m0, {64, 2});
  EXPECT_HAS(dense.problems(), "layers.0.attn.wo.weight: data type I8 is known");
  EXPECT_HAS(dense.problems(), "and the name has \".experts.\"");
  Folder conflict("{\"quantization_config\": {" + block + R"(, "expert_dtype": "fp8"}})");
  EXPECT_HAS(add_case_025(conflict).problems(), "found quant_method \"fp8\", expert_dtype \"fp8\"");
  Folder silent("{\"quantization_config\": {" + block + "}}");
  EXPECT_HAS(add_case_025(silent).problems(), "expert_dtype none");
  Folder twice(R"({"expert_dtype": "fp4", "quantization_config": {"expert_dtype": "fp8", )" +
               block + "}}");
  const Checkpoint contradiction = add_case_025(twice).open();
  std::string message;
  EXPECT_EQ(code_of_build(contradiction, &message), ErrorCode::kBadInput);
  EXPECT_HAS(message, "contradicts");
}

TEST(weight_map_test, case_080_deepseek_v41_as_published) {
  Folder folder(R"({"model_type": "deepseek_v41", "text_config": {}, "quantization_config": {
      "quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [32, 32],
      "scale_fmt": "ue8m0", "expert_dtype": "fp4"}})");
  const std::string dense = "layers.0.attn.wkv";
  folder.add(dense + ".weight", DType::kF8E4m3, {64, 96}, kOneE4m3fn)
      .bytes(dense + ".scale", DType::kF8E8m0, {2, 3}, {127, 128, 129, 128, 129, 130})
      .add(std::string(kExpert) + ".weight", DType::kI8, {64, 48}, 0x22)
      .add(std::string(kExpert) + ".scale", DType::kF8E8m0, {64, 3}, 127);
  const Checkpoint checkpoint = folder.open();
  const WeightMap map = WeightMap::build(checkpoint);
  EXPECT_TRUE(map.problems().empty());
  const std::vector<float> y = times_ones(map.at(dense));
  for (int i = 0; i < 64; ++i) EXPECT_EQ(y[i], i < 32 ? 224.0F : 448.0F) << i;
  for (float value : times_ones(map.at(kExpert))) EXPECT_EQ(value, 96.0F);
}

TEST(weight_map_test, case_003_u8_scales_are_e8m0_and_must_fit_a_layout) {
  Folder folder;
  folder.add("a.weight", DType::kF8E4m3, {32, 32}, kOneE4m3fn)
      .add("a.weight_scale", DType::kU8, {32, 1}, 120)
      .add("b.weight", DType::kF8E4m3, {32, 32})
      .add("b.weight_scale", DType::kU8, {32, 2}, 120);
  const Checkpoint checkpoint = folder.open();
  const WeightMap map = WeightMap::build(checkpoint);
  EXPECT_EQ(map.at("a").format, "mxfp8");
  for (float value : times_ones(map.at("a"))) EXPECT_EQ(value, 0.25F);
  ASSERT_EQ(map.problems().size(), 1u);
  EXPECT_EQ(map.problems()[0].tensor, "b.weight");
  EXPECT_HAS(map.problems()[0].reason, "[32, 2] fits none of the blocks");
}

TEST(weight_map_test, case_026_a_grid_that_is_not_the_ceiling_is_refused) {
  Folder folder(
      R"({"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}})");
  folder.add("a.weight", DType::kF8E4m3, {576, 256})
      .add("a.weight_scale_inv", DType::kF32, {5, 2}, 0)
      .add("b.weight", DType::kF8E4m3, {576, 256})
      .add("b.weight_scale_inv", DType::kF32, {4, 2}, 0);
  const Checkpoint checkpoint = folder.open();
  const WeightMap map = WeightMap::build(checkpoint);
  EXPECT_EQ(map.at("a").format, "fp8-128x128");
  ASSERT_EQ(map.problems().size(), 1u);
  EXPECT_HAS(map.problems()[0].reason, "expected [5, 2], found [4, 2]");
}

TEST(weight_map_test, without_a_config_the_block_must_be_unambiguous) {
  Folder folder;
  folder.add("small.weight", DType::kF8E4m3, {32, 32})
      .add("small.weight_scale_inv", DType::kF32, {1, 1}, 0)
      .add("wide.weight", DType::kF8E4m3, {256, 256})
      .add("wide.weight_scale_inv", DType::kBf16, {2, 2}, 0)
      .add("fine.weight", DType::kF8E4m3, {256, 256})
      .add("fine.weight_scale_inv", DType::kF16, {8, 8}, 0);
  const Checkpoint checkpoint = folder.open();
  const WeightMap map = WeightMap::build(checkpoint);
  EXPECT_EQ(map.at("wide").format, "fp8-128x128");
  EXPECT_EQ(map.at("wide").view.scale_type, ScaleType::kBf16);
  EXPECT_EQ(map.at("fine").format, "fp8-32x32");
  EXPECT_EQ(map.at("fine").view.scale_type, ScaleType::kF16);
  ASSERT_EQ(map.problems().size(), 1u);
  EXPECT_HAS(map.problems()[0].reason, "fits each of the blocks of 32 x 32, 128 x 128");
}

constexpr const char* kGroups = R"({"quantization_config": {
  "quant_method": "compressed-tensors", "format": "mixed-precision", "config_groups": {
    "a_pattern_holds_from_the_start": {"targets": ["re:mlp"], "weights":
        {"num_bits": 8, "type": "float", "strategy": "group", "group_size": 32}},
    "group_0": {"targets": ["re:.*mlp.*"], "weights":
        {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32}},
    "group_1": {"targets": ["layers.0.attn.q_proj"], "weights": {"num_bits": 8, "type": "float",
        "strategy": "block", "block_structure": [32, 32], "symmetric": true}},
    "odd": {"targets": ["Linear"], "weights":
        {"num_bits": 8, "type": "float", "strategy": "tensor_group", "group_size": 16}}}}})";

TEST(weight_map_test, compressed_tensors_groups_decide_by_name_pattern_and_class) {
  Folder folder(kGroups);
  folder.add("layers.0.mlp.up_proj.weight_packed", DType::kU8, {4, 20})
      .add("layers.0.mlp.up_proj.weight_scale", DType::kU8, {4, 2})
      .add("layers.0.attn.q_proj.weight", DType::kF8E4m3, {64, 64})
      .add("layers.0.attn.q_proj.weight_scale", DType::kF8E8m0, {2, 2})
      .add("layers.0.attn.k_proj.weight", DType::kF8E4m3, {64, 64})
      .add("layers.0.attn.k_proj.weight_scale", DType::kF32, {64, 1}, 0)
      .add("layers.0.mlp.down_proj.weight", DType::kF8E4m3, {64, 64})
      .add("layers.0.mlp.down_proj.weight_scale", DType::kU8, {64, 2});
  const Checkpoint checkpoint = folder.open();
  const WeightMap map = WeightMap::build(checkpoint);
  const MappedWeight& packed = map.at("layers.0.mlp.up_proj");
  EXPECT_EQ(packed.format, "mxfp4");
  EXPECT_EQ(packed.view.k, 40);  // the last block is short
  EXPECT_EQ(map.at("layers.0.attn.q_proj").format, "fp8-32x32");
  ASSERT_EQ(map.problems().size(), 2u);
  EXPECT_HAS(map.problems()[0].reason,
             "group odd of config.json is not supported: strategy \"tensor_group\"");
  EXPECT_HAS(map.problems()[1].reason, "found group group_0 of config.json with num_bits 4");
}

TEST(weight_map_test, disagreements_are_refused_with_a_reason) {
  Folder folder(kFp8Config);
  folder.add("two.weight", DType::kF8E4m3, {32, 32})
      .add("two.weight_scale", DType::kF32, {1, 1}, 0)
      .add("two.scale", DType::kF32, {1, 1}, 0)
      .add("upcast.weight", DType::kBf16, {32, 32})
      .add("upcast.weight_scale_inv", DType::kF32, {1, 1}, 0)
      .add("kind.weight", DType::kF8E4m3, {32, 32})
      .add("kind.weight_scale", DType::kF8E4m3, {1, 1})
      .add("fnuz.weight", DType::kF8E4m3Fnuz, {32, 32})
      .add("dense.weight", DType::kI8, {32, 32})
      .add("dense.scale", DType::kF8E8m0, {32, 2})
      .add("stack.weight", DType::kF8E4m3, {2, 1, 32, 32})
      .add("stack.scale", DType::kF8E8m0, {2, 1, 1, 1})
      .add("packed.weight_packed", DType::kU8, {32, 32})
      .add("packed.weight_scale", DType::kU8, {32, 2})
      .add("nv.weight_scale_2", DType::kF32, {}, 0)
      .add("experts.gate_up_proj_blocks", DType::kU8, {4, 4})
      .add("norm.scale", DType::kBf16, {32})
      .add("norm.weight", DType::kBf16, {32})
      .add("router.bias", DType::kF32, {32});
  const std::string problems = folder.problems();
  EXPECT_HAS(problems, "two.weight: scales under two names");
  EXPECT_HAS(problems, "upcast.weight: data type BF16 takes no scales");
  EXPECT_HAS(problems, "kind.weight: kind.weight_scale has data type F8_E4M3");
  EXPECT_HAS(problems, "fnuz.weight: data type F8_E4M3FNUZ is not known");
  EXPECT_HAS(problems, "dense.weight: data type I8 is known under the name \".weight\" where");
  EXPECT_HAS(problems, "stack.weight: shape [2, 1, 32, 32] is not that of a matrix");
  EXPECT_HAS(problems, "packed.weight_packed: data type U8 is known under the name");
  EXPECT_HAS(problems, "nv.weight_scale_2: scales without a weight");
  EXPECT_HAS(problems, "experts.gate_up_proj_blocks: data type U8 is known under the name");
  EXPECT_EQ(std::count(problems.begin(), problems.end(), '\n'), 9);
}

TEST(weight_map_test, a_weight_and_its_scales_may_be_in_different_files) {
  TempDir dir;
  write_file(dir.path() / "config.json", kFp8Config);
  SafetensorsBuilder()
      .add("a.weight", DType::kF8E4m3, {32, 32}, std::vector<std::uint8_t>(1024, kOneE4m3fn))
      .write(dir.path() / "1.safetensors");
  SafetensorsBuilder()
      .add("a.scale", DType::kF8E8m0, {1, 1}, std::vector<std::uint8_t>{128})
      .write(dir.path() / "2.safetensors");
  testing::write_index(dir.path() / "model.safetensors.index.json",
                       {{"a.weight", "1.safetensors"}, {"a.scale", "2.safetensors"}});
  const Checkpoint checkpoint = Checkpoint::open(dir.path());
  const WeightMap map = WeightMap::build(checkpoint);
  EXPECT_TRUE(map.problems().empty());
  EXPECT_EQ(times_ones(map.at("a")).front(), 64.0F);
}

TEST(weight_map_test, configurations_that_cannot_be_used_are_named) {
  struct Row {
    const char* config;
    ErrorCode code;
    const char* words;
  };
  for (const Row& row : {
           Row{R"({"quantization_config": {"quant_method": "awq"}})", ErrorCode::kUnsupported,
               "\"awq\""},
           Row{R"({"quantization_config": {"quant_method": "fp8", "fmt": "e5m2"}})",
               ErrorCode::kUnsupported, "e5m2"},
           Row{R"({"quantization_config": {"quant_method": 3}})", ErrorCode::kBadInput,
               "quant_method"},
           Row{R"({"quantization_config": {"quant_method": "fp8", "weight_block_size": [0, 1]}})",
               ErrorCode::kBadInput, "weight_block_size"},
           Row{R"({"quantization_config": {"quant_method": "compressed-tensors",
                   "config_groups": {"g": {"targets": ["re:("], "weights":
                   {"num_bits": 8, "type": "float", "strategy": "group", "group_size": 32}}}}})",
               ErrorCode::kBadInput, "regular expression"},
           Row{"{", ErrorCode::kBadInput, "JSON"},
       }) {
    Folder folder(row.config);
    const Checkpoint checkpoint = folder.add("a.weight", DType::kBf16, {2, 2}).open();
    std::string message;
    EXPECT_EQ(code_of_build(checkpoint, &message), row.code) << row.config;
    EXPECT_HAS(message, row.words);
    EXPECT_HAS(message, "config.json");
  }
}

TEST(weight_map_test, a_missing_weight_is_named) {
  Folder folder;
  const Checkpoint checkpoint = folder.add("a.weight", DType::kBf16, {2, 2}).open();
  const WeightMap map = WeightMap::build(checkpoint);
  EXPECT_EQ(map.find("b"), nullptr);
  EXPECT_NE(map.find("a"), nullptr);
  try {
    map.at("b");
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kBadInput);
    EXPECT_HAS(error.what(), "b.weight");
  }
}

}  // namespace
}  // namespace deepinfer
