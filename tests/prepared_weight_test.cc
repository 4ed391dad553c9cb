// Packed scales on their way to a kernel: forms, padding, refusals; prepare_model() and its switch.
#include "deepinfer/prepared_weight.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "deepinfer/weight_map.h"
#include "module_data.h"
#include "safetensors_builder.h"

namespace deepinfer {
namespace {

using test::GuardedBytes;
using test::packed_weight;
using test::PackedWeight;
using test::Random;
using test::refusal;

constexpr Element kElements[] = {Element::kE4m3fn, Element::kE2m1};
constexpr std::int64_t kN = 70;  // two blocks of rows and a short one
constexpr std::int64_t kK = 98;  // three blocks of columns and a short one

#define EXPECT_HAS(text, part) EXPECT_NE((text).find(part), std::string::npos) << "in: " << (text)

std::vector<std::uint16_t> run(const PreparedWeight& w, std::optional<std::int64_t> group = {}) {
  Random random(3);
  const auto x = test::spread_bf16(random, 3 * w.k(), 6);
  const Context context({.num_threads = 1});
  return linear_qdq(context, test::rows_of(x, 3, w.k()), w, group);
}

TEST(prepared_weight_test, three_forms_of_packed_scales_mean_the_same) {
  for (const Element element : kElements) {
    Random random(1);
    PackedWeight w = packed_weight(random, element, kN, kK);  // 4 scales a row: 2 pairs
    ASSERT_EQ(w.width, 4);
    const auto bits = run(w.prepare());
    const auto bytes = kernel_scale(w.view)->bytes;
    for (const DType dtype : {DType::kF8E8m0, DType::kI16}) {
      w.view.scales.dtype = dtype;
      w.view.scales.columns = dtype == DType::kI16 ? 2 : 4;
      EXPECT_EQ(kernel_scale(w.view)->bytes, bytes) << dtype_name(dtype);
      EXPECT_EQ(run(w.prepare()), bits) << dtype_name(dtype);
    }
    w.view.scales.dtype = DType::kF32;
    EXPECT_FALSE(kernel_scale(w.view));
    EXPECT_HAS(refusal([&] { w.prepare(); }), "scales are F32, expected I16, U8 or F8_E8M0");
  }
}

TEST(prepared_weight_test, wider_rows_end_in_padding_that_nobody_reads) {
  for (const Element element : kElements) {
    for (const DType dtype : {DType::kU8, DType::kI16}) {
      for (const std::int64_t padding : {1, 3, 60}) {
        Random same(7);
        const PackedWeight narrow = packed_weight(same, element, kN, 70);  // 3 scales a row
        Random again(7);
        const PackedWeight wide = packed_weight(again, element, kN, 70, {}, padding, dtype);
        ASSERT_GT(wide.width, narrow.width);
        EXPECT_EQ(kernel_scale(wide.view)->bytes, kernel_scale(narrow.view)->bytes);
        EXPECT_EQ(run(wide.prepare()), run(narrow.prepare()));
      }
    }
  }
}

TEST(prepared_weight_test, rows_that_do_not_fit_give_no_kernel_scale_and_are_refused) {
  for (const Element element : kElements) {
    Random random(1);
    const PackedWeight w = packed_weight(random, element, kN, kK);
    const auto refused = [&](std::int64_t rows, std::int64_t columns, const char* found) {
      PackedWeightView view = w.view;
      view.scales.rows = rows;
      view.scales.columns = columns;
      EXPECT_FALSE(kernel_scale(view)) << found;
      const std::string message = refusal([&] { PreparedWeight::prepare(view, "layer.7"); });
      EXPECT_HAS(message, "layer.7");
      EXPECT_HAS(message, found);
      EXPECT_HAS(message, "expected [70, 4]");
    };
    refused(kN, 3, "[70, 3]");
    refused(kN, 0, "[70, 0]");
    refused(kN - 1, 4, "[69, 4]");
    refused(kN + 1, 4, "[71, 4]");
    refused(3, 4, "[3, 4]");  // the grid of 32 x 32, where rows are expected
  }
}

TEST(prepared_weight_test, kernel_scale_is_one_row_in_32_of_fp8_and_every_row_of_fp4) {
  for (const Element element : kElements) {
    for (const std::int64_t n : {1, 31, 32, 33, 70}) {
      for (const std::int64_t k : {2, 32, 34, 576}) {
        for (const auto groups : {std::optional<std::int64_t>(), std::optional<std::int64_t>(3)}) {
          Random random(static_cast<std::uint64_t>(n * 1000 + k));
          const PackedWeight w = packed_weight(random, element, n, k, groups, 2);
          const auto scale = kernel_scale(w.view);
          ASSERT_TRUE(scale) << n << " " << k;
          const std::int64_t step = element == Element::kE4m3fn ? 32 : 1;
          EXPECT_EQ(scale->rows, (n + step - 1) / step);
          EXPECT_EQ(scale->columns, (k + 31) / 32);
          std::vector<std::uint8_t> expected;
          for (std::int64_t r = 0; r < groups.value_or(1) * n; ++r) {
            if (r % n % step != 0) continue;
            const auto* row = w.scales.data() + r * w.width;
            expected.insert(expected.end(), row, row + scale->columns);
          }
          EXPECT_EQ(scale->bytes, expected);
        }
      }
    }
  }
}

TEST(prepared_weight_test, fp8_rows_of_a_block_that_differ_give_nothing_and_are_named) {
  struct Place {
    std::int64_t group, row, first;
  };
  for (const Place& place : {Place{0, 31, 0}, Place{1, 33, 32}, Place{2, 69, 64}}) {
    Random random(5);
    PackedWeight fp8 = packed_weight(random, Element::kE4m3fn, kN, kK, 3);
    const auto at = static_cast<std::size_t>(((place.group * kN + place.row) * fp8.width) + 3);
    fp8.scales[at] ^= 1;
    EXPECT_FALSE(kernel_scale(fp8.view));
    const std::string message = refusal([&] { fp8.prepare(); });
    EXPECT_HAS(message, "rows " + std::to_string(place.first) + " and " +
                            std::to_string(place.row) + " of group " + std::to_string(place.group));
    PackedWeight fp4 = packed_weight(random, Element::kE2m1, kN, kK, 3);
    fp4.scales[at] ^= 1;
    EXPECT_TRUE(kernel_scale(fp4.view));
  }
}

TEST(prepared_weight_test, groups_are_those_of_single_weights) {
  for (const Element element : kElements) {
    Random random(2);
    const PackedWeight w = packed_weight(random, element, kN, kK, 3, 1);
    const PreparedWeight stacked = w.prepare();
    EXPECT_EQ(stacked.groups(), 3);
    std::vector<Weight> singles;
    for (std::int64_t g = 0; g < 3; ++g) singles.push_back(Weight::prepare(w.published(g), "w"));
    const PreparedWeight published = PreparedWeight::stack(singles);
    for (std::int64_t g = 0; g < 3; ++g) {
      const auto one = run(PreparedWeight::single(Weight::prepare(w.published(g), "w")));
      EXPECT_EQ(run(stacked, g), one);
      EXPECT_EQ(run(published, g), one);
    }
    EXPECT_HAS(refusal([&] { stacked.at({}); }), "a stacked weight of 3 groups needs a group");
    EXPECT_HAS(refusal([&] { stacked.at(-1); }), "group -1 is out of range");
    EXPECT_HAS(refusal([&] { stacked.at(3); }), "group 3 is out of range");
    EXPECT_HAS(refusal([&] { PreparedWeight::single(singles[0]).at(0); }), "not stacked");
  }
}

TEST(prepared_weight_test, stack_refuses_weights_that_differ) {
  Random random(2);
  const PackedWeight a = packed_weight(random, Element::kE4m3fn, 64, 64);
  WeightView other = a.published();
  other.n = 32;
  other.scale_rows = 1;
  const auto stack = [&](const WeightView& second) {
    return refusal([&] {
      PreparedWeight::stack({Weight::prepare(a.published(), "a"), Weight::prepare(second, "b")});
    });
  };
  EXPECT_HAS(stack(other), "group 1 is [32, 64], expected [64, 64]");
  WeightView rows = a.published();  // the same shape with a scale for every row
  rows.block_n = 1;
  rows.scale_rows = 64;
  rows.scale_stride = a.width;
  EXPECT_HAS(stack(rows), "of the same format");
  EXPECT_EQ(stack(a.published()), "accepted");
}

TEST(prepared_weight_test, empty_weights_are_weights) {
  for (const Element element : kElements) {
    for (const auto& [n, k] : {std::pair<std::int64_t, std::int64_t>{0, 64}, {70, 0}, {0, 0}}) {
      PackedWeightView view;
      view.element = element;
      view.n = n;
      view.k = k;
      view.scales = {nullptr, DType::kU8, n, (k + 31) / 32};
      EXPECT_TRUE(kernel_scale(view));
      const PreparedWeight w = PreparedWeight::prepare(view, "empty");
      EXPECT_EQ(run(w), std::vector<std::uint16_t>(static_cast<std::size_t>(3 * n), 0));
      view.groups = 0;
      EXPECT_EQ(PreparedWeight::prepare(view, "none").groups(), 0);
    }
  }
}

TEST(prepared_weight_test, a_prepared_weight_can_be_moved) {
  Random random(6);
  const PackedWeight w = packed_weight(random, Element::kE4m3fn, kN, kK, 2);
  PreparedWeight first = w.prepare();
  const auto bits = run(first, 1);
  const PreparedWeight second = std::move(first);
  EXPECT_EQ(run(second, 1), bits);
}

/// fp8, stacked fp4, fp8 with rows that differ, and fp8 with narrow scales.
struct Model {
  Random random{8};
  PackedWeight fp8 = packed_weight(random, Element::kE4m3fn, kN, kK);
  PackedWeight fp4 = packed_weight(random, Element::kE2m1, kN, kK, 4);
  PackedWeight torn = packed_weight(random, Element::kE4m3fn, kN, kK);
  PackedWeight narrow = packed_weight(random, Element::kE4m3fn, kN, kK);

  Model() {
    torn.scales.back() ^= 1;
    narrow.view.scales.columns = 3;
  }

  std::vector<NamedPackedWeight> list() const {
    return {
        {"z.torn", torn.view}, {"d.fp8", fp8.view}, {"c.fp4", fp4.view}, {"a.narrow", narrow.view}};
  }
};

TEST(prepare_model_test, counts_what_fits_and_says_why_the_rest_does_not) {
  const Model model;
  const Context context({.num_threads = 1});
  const PreparedModel prepared = prepare_model(context, model.list());
  EXPECT_EQ(prepared.count(), 2);
  EXPECT_EQ(run(*prepared.find("d.fp8")), run(model.fp8.prepare()));
  EXPECT_EQ(run(*prepared.find("c.fp4"), 3), run(model.fp4.prepare(), 3));
  EXPECT_EQ(prepared.find("z.torn"), nullptr);
  ASSERT_EQ(prepared.refused.size(), 2U);
  EXPECT_EQ(prepared.refused[0].name, "a.narrow");
  EXPECT_HAS(prepared.refused[0].reason, "expected [70, 4]");
  EXPECT_EQ(prepared.refused[1].name, "z.torn");
  EXPECT_HAS(prepared.refused[1].reason, "different scales");
}

TEST(prepare_model_test, the_switch_is_on_for_1_alone_and_code_wins) {
  const Model model;
  const auto count = [&](std::optional<bool> gemm) {
    return prepare_model(Context({.num_threads = 1, .gemm = gemm}), model.list()).count();
  };
  EXPECT_EQ(count(std::nullopt), 2);
  EXPECT_EQ(count(false), 0);
  for (const char* off : {"", "0", "true", "1 ", "01"}) {
    setenv("DEEPINFER_GEMM", off, 1);
    EXPECT_EQ(count(std::nullopt), 0) << "'" << off << "'";
    EXPECT_EQ(count(true), 2) << "'" << off << "'";
  }
  setenv("DEEPINFER_GEMM", "1", 1);
  EXPECT_EQ(count(std::nullopt), 2);
  EXPECT_EQ(count(false), 0);
  unsetenv("DEEPINFER_GEMM");
}

TEST(prepare_model_test, reads_scales_and_never_codes) {
  Model model;
  const GuardedBytes fp8(model.fp8.codes);
  const GuardedBytes fp4(model.fp4.codes);
  model.fp8.view.codes = fp8.data();
  model.fp4.view.codes = fp4.data();
  const Context context({.num_threads = 1});
  fp8.lock();  // a read of a code would end the program
  fp4.lock();
  EXPECT_TRUE(kernel_scale(model.fp8.view));
  EXPECT_TRUE(kernel_scale(model.fp4.view));
  const PreparedModel prepared = prepare_model(context, model.list());
  EXPECT_EQ(prepared.count(), 2);
  fp8.unlock();
  fp4.unlock();
  EXPECT_EQ(run(*prepared.find("d.fp8")).size(), static_cast<std::size_t>(3 * kN));
}

TEST(prepare_model_test, takes_the_weights_of_a_checkpoint_and_says_what_it_cannot_take) {
  const testing::TempDir dir;
  testing::write_file(dir.path() / "config.json", R"({"quantization_config": {"quant_method": "fp8",
                      "weight_block_size": [32, 32]}})");
  const auto bytes = [](std::size_t count) { return std::vector<std::uint8_t>(count, 0x70); };
  testing::SafetensorsBuilder()
      .add("b.weight", DType::kF8E4m3, {64, 96}, bytes(64 * 96))
      .add("b.weight_scale_inv", DType::kF8E8m0, {2, 3}, bytes(6))
      .add("c.weight", DType::kF8E4m3, {64, 96}, bytes(64 * 96))
      .add("c.weight_scale_inv", DType::kF32, {2, 3},
           std::vector<float>{1.0F, 1.0F, 1.0F, 1.0F, -1.0F, 1.0F})
      .add("d.weight", DType::kF8E4m3, {64, 96}, bytes(64 * 96))
      .add("e.weight", DType::kBf16, {64, 96}, bytes(2 * 64 * 96))
      .write(dir.path() / "model.safetensors");
  const Checkpoint checkpoint = Checkpoint::open(dir.path());
  const WeightMap map = WeightMap::build(checkpoint);
  const PreparedModel prepared = prepare_model(Context({.num_threads = 1}), map);
  EXPECT_EQ(prepared.count(), 1);
  ASSERT_NE(prepared.find("b"), nullptr);
  EXPECT_EQ(prepared.find("b")->n(), 64);
  ASSERT_EQ(prepared.refused.size(), 2U);
  EXPECT_EQ(prepared.refused[0].name, "c");
  EXPECT_HAS(prepared.refused[0].reason, "scale [1, 1] is -1");
  EXPECT_EQ(prepared.refused[1].name, "d.weight");  // fp8 without scales
  EXPECT_EQ(prepare_model(Context({.num_threads = 1, .gemm = false}), map).count(), 0);
}

}  // namespace
}  // namespace deepinfer
