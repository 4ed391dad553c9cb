// How each producer's tensors are told apart, and every way in which one can contradict itself. The
// values of all families are compared in tests/zoo.
#include "models/layouts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "checkpoint_folder.h"
#include "deepinfer/error.h"
#include "deepinfer/prepared_weight.h"
#include "models/loader.h"

namespace deepinfer {
namespace {

using testing::Folder;

std::string quantized(const std::string& block) {
  return "{\"quantization_config\": {" + block + "}}";
}

std::string group(const std::string& weights, const std::string& more = "") {
  return quantized(R"("quant_method": "compressed-tensors", )" + more +
                   R"("config_groups": {"group_0": {"targets": ["Linear"], "weights": {)" +
                   weights + R"(, "type": "float"}}})");
}

const std::string kFp8 = R"("quant_method": "fp8", "weight_block_size": [128, 128])";
const std::string kNvfp4 = R"("num_bits": 4, "strategy": "tensor_group", "group_size": 16)";
const std::string kMxfp4 = R"("num_bits": 4, "strategy": "group", "group_size": 32)";
const std::string kModelOpt = R"("quant_method": "modelopt", "quant_algo": )";

Folder& add_nvfp4(Folder& folder, const std::string& codes, const std::string& second) {
  return folder.add("a" + codes, DType::kU8, {4, 16})
      .add("a.weight_scale", DType::kF8E4m3, {4, 2})
      .add("a" + second, DType::kF32, {}, 0x3F);
}

TEST(layouts_test, every_row_can_be_reached_and_names_its_producer) {
  for (const models::Layout& row : models::layouts()) {
    EXPECT_FALSE(row.producers.empty());
    EXPECT_FALSE(row.when.words.empty());
    EXPECT_TRUE(row.codes.suffix.starts_with('.') || row.codes.suffix.starts_with('_'));
    EXPECT_FALSE(row.scales.suffixes[0].empty());
    const bool is_last_level = row.grid != models::Grid::kRow16;
    EXPECT_EQ(row.scales.tensor_suffix.empty(), is_last_level) << row.producers;
  }
}

TEST(layouts_test, nvfp4_is_recognised_and_cannot_run) {
  Folder folder(group(kNvfp4));
  const Checkpoint checkpoint = add_nvfp4(folder, ".weight_packed", ".weight_global_scale").open();
  const WeightMap map = WeightMap::build(checkpoint);
  EXPECT_TRUE(map.problems().empty());
  const MappedWeight& weight = map.at("a");
  EXPECT_EQ(weight.format, "nvfp4");
  EXPECT_EQ(weight.view.k, 32);
  EXPECT_TRUE(weight.tensor_scale_divides);
  EXPECT_EQ(weight.tensor_scale->name, "a.weight_global_scale");
  EXPECT_HAS(weight.cannot_run, "NVFP4");
  EXPECT_THROW(Weight::prepare(weight.view, weight.name), Error);
  const Context context({.num_threads = 1, .isa = std::nullopt});
  const PreparedModel model = prepare_model(context, map);
  ASSERT_EQ(model.refused.size(), 1u);
  EXPECT_HAS(model.refused[0].reason, "no kernel takes NVFP4");
  try {
    models::Loader(checkpoint).linear("a", 4, 32);
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_HAS(error.what(), "weight 'a' cannot run yet: no kernel takes NVFP4");
  }
}

TEST(layouts_test, nvfp4_needs_its_second_scale_and_nothing_else_takes_one) {
  Folder without(group(kNvfp4));
  without.add("a.weight_packed", DType::kU8, {4, 16}).add("a.weight_scale", DType::kF8E4m3, {4, 2});
  EXPECT_HAS(
      without.problems(),
      "a.weight_packed: nvfp4 needs a second scale, found none (tried a.weight_global_scale)");

  Folder extra(group(kMxfp4));
  extra.add("a.weight_packed", DType::kU8, {4, 16})
      .add("a.weight_scale", DType::kU8, {4, 1})
      .add("a.weight_global_scale", DType::kF32, {1}, 0);
  EXPECT_HAS(extra.problems(),
             "a.weight_packed: mxfp4 takes no second scale of this name, but there is "
             "a.weight_global_scale");

  Folder shape(quantized(kModelOpt + "\"NVFP4\""));
  shape.add("a.weight", DType::kU8, {4, 16})
      .add("a.weight_scale", DType::kF8E4m3, {4, 2})
      .add("a.weight_scale_2", DType::kF32, {4}, 0);
  EXPECT_HAS(shape.problems(), "a.weight_scale_2: expected one F32 value, found F32 [4]");

  Folder swizzled(quantized(kModelOpt + "\"NVFP4\""));
  swizzled.add("a.weight", DType::kU8, {4, 16})
      .add("a.weight_scale", DType::kF8E4m3, {128, 4})
      .add("a.weight_scale_2", DType::kF32, {}, 0);
  EXPECT_HAS(swizzled.problems(), "in blocks of 1 x 16: expected [4, 2], found [128, 4]");
}

TEST(layouts_test, a_u8_weight_is_nothing_without_a_word_from_the_config) {
  Folder folder;
  EXPECT_HAS(add_nvfp4(folder, ".weight", ".weight_scale_2").problems(),
             "a.weight: data type U8 is known under the name \".weight\" where config.json says "
             "quant_method \"modelopt\" and quant_algo \"NVFP4\" or \"MXFP8\"; or quant_method "
             "\"quark\" and weights of dtype \"fp4\"; found nothing about quantization");
}

TEST(layouts_test, experts_and_expert_dtype_must_agree) {
  Folder folder(R"({"expert_dtype": "fp4", "quantization_config": {)" + kFp8 + "}}");
  folder.add("layers.0.ffn.experts.0.w1.weight", DType::kF8E4m3, {128, 128})
      .add("layers.0.ffn.experts.0.w1.scale", DType::kF32, {1, 1}, 0);
  EXPECT_HAS(folder.problems(), "experts.0.w1.weight: data type F8_E4M3 is known");
  Folder odd(R"({"expert_dtype": "fp6", "quantization_config": {)" + kFp8 + "}}");
  odd.add("layers.0.ffn.experts.0.w1.weight", DType::kI8, {128, 64})
      .add("layers.0.ffn.experts.0.w1.scale", DType::kF8E8m0, {128, 4});
  EXPECT_HAS(odd.problems(), "expert_dtype \"fp6\" is not known, expected \"fp4\" or \"fp8\"");
  Folder f32(R"({"expert_dtype": "fp4", "quantization_config": {)" + kFp8 + "}}");
  f32.add("layers.0.ffn.experts.0.w1.weight", DType::kI8, {128, 64})
      .add("layers.0.ffn.experts.0.w1.scale", DType::kF32, {128, 4}, 0);
  EXPECT_HAS(f32.problems(), "has data type F32, which is not known for scales of I8 codes");
}

TEST(layouts_test, a_block_size_in_the_config_rules_out_one_scale_for_all) {
  Folder folder(quantized(kFp8));
  folder.add("a.weight", DType::kF8E4m3, {256, 256}).add("a.weight_scale_inv", DType::kF32, {1}, 0);
  EXPECT_HAS(folder.problems(), "in blocks of 128 x 128: expected [2, 2], found [1]");
}

TEST(layouts_test, a_stack_has_a_view_for_each_matrix) {
  Folder folder(quantized(R"("quant_method": "fp8", "weight_block_size": [32, 32])"));
  folder.add("stack.weight", DType::kF8E4m3, {2, 64, 96}, 0x38)
      .bytes("stack.scale", DType::kF8E8m0, {2, 2, 3},
             {127, 128, 129, 128, 129, 130, 128, 129, 130, 129, 130, 131});
  const Checkpoint checkpoint = folder.open();
  const WeightMap map = WeightMap::build(checkpoint);
  MappedWeight weight = map.at("stack");
  EXPECT_EQ(weight.groups, 2);
  EXPECT_EQ(testing::times_ones(weight).front(), 224.0F);
  weight.view = group_view(weight, 1);
  EXPECT_EQ(testing::times_ones(weight).front(), 448.0F);
  EXPECT_EQ(testing::times_ones(weight).back(), 896.0F);
  for (std::int64_t group : {-1, 2}) EXPECT_THROW(group_view(weight, group), Error);
  const Context context({.num_threads = 1, .isa = std::nullopt});
  const PreparedModel model = prepare_model(context, map);
  ASSERT_EQ(model.count(), 1);
  EXPECT_EQ(model.find("stack")->groups(), 2);
  EXPECT_EQ(model.find("stack")->at(1).view().scales, group_view(map.at("stack"), 1).scales);
  EXPECT_THROW(models::Loader(checkpoint).linear("stack", 64, 96), Error);
}

TEST(layouts_test, gate_and_up_rows_alternate_only_where_gpt_oss_says_so) {
  Folder folder(quantized(R"("quant_method": "mxfp4")"));
  for (const char* name : {"experts.gate_up_proj", "experts.down_proj"}) {
    folder.add(std::string(name) + "_blocks", DType::kU8, {2, 8, 1, 16})
        .add(std::string(name) + "_scales", DType::kU8, {2, 8, 1});
  }
  folder.add("bad_blocks", DType::kU8, {2, 8, 1, 8}).add("bad_scales", DType::kU8, {2, 8, 1});
  const Checkpoint checkpoint = folder.open();
  const WeightMap map = WeightMap::build(checkpoint);
  EXPECT_EQ(map.at("experts.gate_up_proj").row_order, RowOrder::kGateUp);
  EXPECT_EQ(map.at("experts.down_proj").row_order, RowOrder::kPlain);
  ASSERT_EQ(map.problems().size(), 1u);
  EXPECT_HAS(map.problems()[0].reason, "expected blocks of 16 bytes");
  EXPECT_THROW(map.at("bad"), Error);
}

TEST(layouts_test, a_grid_that_begins_anew_is_never_stretched) {
  Folder folder(quantized(kFp8));
  folder.add("qkv_proj.weight", DType::kF8E4m3, {27136, 64})
      .add("qkv_proj.weight_scale_inv", DType::kF32, {216, 1}, 0);
  const Checkpoint checkpoint = folder.open();
  const WeightMap refused = WeightMap::build(checkpoint);
  ASSERT_EQ(refused.problems().size(), 1u);
  EXPECT_HAS(refused.problems()[0].reason,
             "expected [212, 1], found [216, 1]; a grid that begins anew every 3392 rows would");
  const WeightMap map =
      WeightMap::build(checkpoint, {.segmentations = {{.pattern = "qkv", .rows = 3392}}});
  EXPECT_EQ(map.at("qkv_proj").groups, 8);
  EXPECT_EQ(map.at("qkv_proj").view.scale_rows, 27);
  const WeightMap wrong =
      WeightMap::build(checkpoint, {.segmentations = {{.pattern = "qkv", .rows = 3393}}});
  EXPECT_HAS(wrong.problems()[0].reason, "is not made of segments of 3393 rows");
  for (const Segmentation& bad : {Segmentation{"qkv", 0}, Segmentation{"(", 8}}) {
    EXPECT_THROW(WeightMap::build(checkpoint, {.segmentations = {bad}}), Error);
  }
}

TEST(layouts_test, packed_int32_scales_have_one_row_per_row) {
  Folder folder(quantized(kFp8));
  folder.add("a.weight", DType::kF8E4m3, {4, 512}, 0x38)
      .add("a.weight_scale_inv", DType::kI32, {4, 1}, 128)
      .add("b.weight", DType::kF8E4m3, {256, 512}, 0x38)
      .add("b.weight_scale_inv", DType::kI32, {2, 1}, 128);
  const Checkpoint checkpoint = folder.open();
  const WeightMap map = WeightMap::build(checkpoint);
  EXPECT_EQ(map.at("a").format, "fp8-1x128");
  EXPECT_EQ(testing::times_ones(map.at("a")).front(), 1024.0F);
  ASSERT_EQ(map.problems().size(), 1u);
  EXPECT_HAS(map.problems()[0].reason, "in blocks of 1 x 128: expected [256, 1], found [2, 1]");
}

TEST(layouts_test, configurations_that_contradict_themselves_or_say_too_much_are_named) {
  struct Row {
    std::string config;
    std::string side;
    ErrorCode code;
    const char* words;
  };
  const std::string nvfp4 = R"({"quantization": {"quant_algo": "NVFP4"}})";
  for (const Row& row : {
           Row{quantized(kModelOpt + "\"MXFP8\""), nvfp4, ErrorCode::kBadInput, "contradicts"},
           Row{quantized(kFp8), nvfp4, ErrorCode::kBadInput, "contradicts config.json"},
           Row{group(kMxfp4, R"("transform_config": {"config_groups": {"r": {}}}, )"), "",
               ErrorCode::kUnsupported, "weights that were rotated"},
           Row{quantized(R"("quant_method": "fbgemm_fp8")"), "", ErrorCode::kUnsupported,
               "\"fbgemm_fp8\" is not supported, expected one of \"fp8\", \"mxfp4\""},
       }) {
    Folder folder(row.config);
    if (!row.side.empty()) testing::write_file(folder.path() / "hf_quant_config.json", row.side);
    const Checkpoint checkpoint = folder.add("a.weight", DType::kBf16, {2, 2}).open();
    try {
      WeightMap::build(checkpoint);
      ADD_FAILURE() << "accepted: " << row.config;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), row.code);
      EXPECT_HAS(error.what(), row.words);
    }
  }
}

TEST(layouts_test, schemes_that_are_not_known_refuse_their_weights_and_no_others) {
  struct Row {
    std::string config;
    const char* words;
  };
  for (const Row& row : {
           Row{quantized(kModelOpt + "\"FP8_PB_WO\""), "quant_algo \"FP8_PB_WO\""},
           Row{quantized(kModelOpt + "\"NVFP4\", \"group_size\": 32"), "with group_size 32"},
           Row{quantized(R"("quant_method": "modelopt")"), "without a quant_algo"},
           Row{group(R"("num_bits": 8, "strategy": "group", "group_size": 64)"), "group_size 64"},
           Row{group(kMxfp4, R"("format": "nvfp4-pack-quantized", )"),
               "format \"nvfp4-pack-quantized\" contradicts num_bits 4, group_size 32"},
           Row{quantized(R"("quant_method": "quark", "global_quant_config": {"weight": {
                   "dtype": "int4"}})"),
               "dtype \"int4\" is not supported"},
           Row{quantized(R"("quant_method": "quark", "global_quant_config": {"weight": {
                   "dtype": "fp4", "qscheme": "per_group", "group_size": 32}},
                   "layer_quant_config": {"a": {"weight": {"dtype": "fp8"}}})"),
               "layer_quant_config \"a\": dtype \"fp8\""},
       }) {
    Folder folder(row.config);
    folder.add("a.weight", DType::kF8E4m3, {32, 32})
        .add("a.weight_scale", DType::kU8, {32, 1})
        .add("plain.weight", DType::kBf16, {2, 2});
    const std::string problems = folder.problems();
    EXPECT_HAS(problems, "a.weight: ");
    EXPECT_HAS(problems, row.words);
    EXPECT_EQ(std::count(problems.begin(), problems.end(), '\n'), 1) << problems;
  }
}

TEST(layouts_test, case_019_bf16_f32_and_e8m0_spellings_of_a_scale_give_the_same_bits) {
  // 0x3B40 is 0.0029296875 in bf16; 2^-8 can be written in all of them.
  const std::vector<std::uint8_t> bf16 = {0x40, 0x3B};
  const std::vector<std::uint8_t> f32 = {0x00, 0x00, 0x40, 0x3B};
  Folder folder(quantized(R"("quant_method": "fp8", "weight_block_size": [32, 32])"));
  folder.add("a.weight", DType::kF8E4m3, {1, 32}, 0x40)
      .bytes("a.weight_scale_inv", DType::kBf16, {1, 1}, bf16)
      .add("b.weight", DType::kF8E4m3, {1, 32}, 0x40)
      .bytes("b.weight_scale_inv", DType::kF32, {1, 1}, f32)
      .add("c.weight", DType::kF8E4m3, {1, 32}, 0x40)
      .bytes("c.weight_scale_inv", DType::kBf16, {1, 1}, {0x80, 0x3B})
      .add("d.weight", DType::kF8E4m3, {1, 32}, 0x40)
      .add("d.scale", DType::kF8E8m0, {1, 1}, 119);
  const Checkpoint checkpoint = folder.open();
  const WeightMap map = WeightMap::build(checkpoint);
  EXPECT_TRUE(map.problems().empty());
  EXPECT_EQ(testing::times_ones(map.at("a")).front(), 0.1875F);
  EXPECT_EQ(testing::times_ones(map.at("b")).front(), 0.1875F);
  EXPECT_EQ(testing::times_ones(map.at("c")), testing::times_ones(map.at("d")));
}

TEST(layouts_test, case_011_fnuz_is_refused_by_name) {
  Folder folder(quantized(kFp8));
  folder.add("a.weight", DType::kF8E4m3Fnuz, {1, 32}).add("a.scale", DType::kF8E8m0, {1, 1});
  const std::string problems = folder.problems();
  EXPECT_HAS(problems, "a.weight: data type F8_E4M3FNUZ is not known under the name \".weight\"");
  EXPECT_EQ(std::count(problems.begin(), problems.end(), '\n'), 1) << problems;
}

}  // namespace
}  // namespace deepinfer
