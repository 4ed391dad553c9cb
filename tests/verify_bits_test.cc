// The comparison of verify() must see every error that it is there for: each test here puts a
// faulty linear() in place of ours and looks whether, and where, the fault is found.
#include "models/verify_bits.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "models/compare_bits.h"
#include "models/row_samples.h"
#include "safetensors_builder.h"
#include "test_weights.h"
#include "tiny_llama.h"

namespace deepinfer::models {
namespace {

using test::Random;
using testing::SafetensorsBuilder;
using testing::TempDir;
using testing::TinyLlama;

/// An open checkpoint in a folder of its own.
struct Opened {
  TempDir dir;
  std::optional<Checkpoint> checkpoint;
  WeightMap map;

  void open() {
    checkpoint.emplace(Checkpoint::open(dir.path()));
    map = WeightMap::build(*checkpoint);
  }
};

/// mxfp8 [n, k] of codes below 2 in magnitude, "w".
void write_mxfp8(Opened& opened, std::int64_t n, std::int64_t k) {
  Random random(3);
  std::vector<std::uint8_t> codes = random.bytes(static_cast<std::size_t>(n * k));
  for (std::uint8_t& code : codes) code &= 0xBF;
  std::vector<std::uint8_t> scales(static_cast<std::size_t>(n * (k / 32)));
  for (std::uint8_t& scale : scales) scale = static_cast<std::uint8_t>(122 + random.below(5));
  SafetensorsBuilder()
      .add("w.weight", DType::kF8E4m3, {n, k}, codes)
      .add("w.weight_scale", DType::kU8, {n, k / 32}, scales)
      .write(opened.dir.path() / "model.safetensors");
  opened.open();
}

void plain(const Context& context, const MatrixView& x, const Weight& w, const MutableMatrixView& y,
           Activations activations) {
  linear(context, x, w, y, activations);
}

BitCheck check(const WeightMap& map, const LinearFunction& function) {
  std::vector<std::int64_t> rows;
  return verify_bits(map,
                     {.budget = std::nullopt,
                      .seed = 1,
                      .max_threads = 4,
                      .progress = [](double) {},
                      .linear = function},
                     rows);
}

/// Changes one element of y.
using Change = std::function<void(std::uint32_t& bits, int width)>;

void change_element(const MutableMatrixView& y, std::int64_t row, std::int64_t column,
                    const Change& change) {
  const bool bf16 = y.type == FloatType::kBf16;
  auto* at = static_cast<char*>(y.data) + (row * y.columns + column) * (bf16 ? 2 : 4);
  std::uint32_t bits = 0;
  std::memcpy(&bits, at, bf16 ? 2 : 4);
  change(bits, bf16 ? 16 : 32);
  std::memcpy(at, &bits, bf16 ? 2 : 4);
}

void flip_last_bit(std::uint32_t& bits, int) { bits ^= 1U; }

// ---- compare_bits

TEST(verify_bits_test, compare_counts_and_locates) {
  std::vector<float> a = {1, 2, 3, 4, 5, 6};
  std::vector<float> b = {1, 2, 3, 4, 5.5F, 7.5F};
  const Mismatch mismatch =
      compare_bits({a.data(), FloatType::kF32, 2, 3, 0}, {b.data(), FloatType::kF32, 2, 3, 0});
  EXPECT_EQ(mismatch.count, 2);
  EXPECT_EQ(mismatch.row, 1);
  EXPECT_EQ(mismatch.column, 1);
  EXPECT_EQ(mismatch.expected, 0x40A00000U);
  EXPECT_EQ(mismatch.found, 0x40B00000U);
  EXPECT_EQ(mismatch.largest_error, 0.25);
}

TEST(verify_bits_test, compare_sees_signs_of_zero_and_the_last_bit_and_skips_gaps) {
  const std::vector<std::uint32_t> a = {0x00000000U, 0x3F800000U, 0xDEADU,
                                        0x7FC00000U, 0U,          0xDEADU};
  std::vector<std::uint32_t> b = a;
  b[2] = 0;  // between the rows
  const MatrixView left = {a.data(), FloatType::kF32, 2, 2, 3};
  const MatrixView right = {b.data(), FloatType::kF32, 2, 2, 3};
  EXPECT_EQ(compare_bits(left, right).count, 0);
  b[1] += 1;
  EXPECT_EQ(compare_bits(left, right).largest_error, 0x1p-23);
  b[4] = 0x80000000U;
  EXPECT_EQ(compare_bits(left, right).count, 2);
  EXPECT_EQ(compare_bits(left, right).largest_error, std::numeric_limits<double>::infinity());
}

// ---- Samples.

TEST(verify_bits_test, samples_cover_every_row_once_in_an_order_of_the_seed) {
  Opened opened;
  TinyLlama tiny;
  tiny.vocabulary = 700;
  tiny.kind = TinyLlama::Kind::kFp8;
  tiny.write(opened.dir.path());
  opened.open();
  const auto order = [&](std::uint64_t seed) {
    std::vector<std::pair<std::size_t, std::int64_t>> out;
    std::set<std::pair<std::size_t, std::int64_t>> rows;
    std::set<std::size_t> seen;
    for (const RowSample& sample : row_samples(opened.map, seed)) {
      EXPECT_EQ(sample.is_first, seen.insert(sample.weight).second);
      EXPECT_TRUE(sample.is_first || seen.size() == opened.map.weights().size());
      out.emplace_back(sample.weight, sample.first);
      for (std::int64_t row = sample.first; row < sample.last; ++row) {
        EXPECT_TRUE(rows.emplace(sample.weight, row).second);
      }
    }
    std::size_t all = 0;
    for (const MappedWeight& weight : opened.map.weights()) {
      all += static_cast<std::size_t>(weight.view.n);
    }
    EXPECT_EQ(rows.size(), all);
    return out;
  };
  EXPECT_EQ(order(5), order(5));
  EXPECT_NE(order(5), order(6));
}

// ---- Faults.

TEST(verify_bits_test, case_083_doubled_y_fails) {
  Opened opened;
  write_mxfp8(opened, 40, 4096);
  EXPECT_EQ(check(opened.map, plain).differences, 0);
  const BitCheck result =
      check(opened.map, [](const Context& c, const MatrixView& x, const Weight& w,
                           const MutableMatrixView& y, Activations a) {
        plain(c, x, w, y, a);
        const Change twice = [](std::uint32_t& bits, int width) {
          bits += width == 16 ? 1U << 7 : 1U << 23;  // the exponent
        };
        for (std::int64_t i = 0; i < y.rows * y.columns; ++i) change_element(y, 0, i, twice);
      });
  EXPECT_EQ(result.differences, result.outputs);
  EXPECT_EQ(result.largest_error, 1.0);
  ASSERT_TRUE(result.first);
  EXPECT_EQ(result.first->tensor, "w.weight");
  EXPECT_EQ(result.first->row, 0);
  EXPECT_EQ(result.first->column, 0);
}

TEST(verify_bits_test, case_083_one_group_off_by_a_factor_2_is_located) {
  constexpr std::int64_t kRow = 37;
  constexpr std::int64_t kGroup = 57;
  Opened opened;
  write_mxfp8(opened, 300, 4096);
  const auto* codes = static_cast<const std::uint8_t*>(opened.map.weights()[0].view.codes);
  const BitCheck result =
      check(opened.map, [&](const Context& c, const MatrixView& x, const Weight& w,
                            const MutableMatrixView& y, Activations a) {
        WeightView view = w.view();
        const std::int64_t first = (static_cast<const std::uint8_t*>(view.codes) - codes) / view.k;
        const auto* bytes = static_cast<const std::uint8_t*>(view.scales);
        std::vector<std::uint8_t> scales(bytes, bytes + view.scale_rows * view.scale_columns);
        if (first <= kRow && kRow < first + view.n) {
          ++scales[static_cast<std::size_t>((kRow - first) * view.scale_columns + kGroup)];
        }
        view.scales = scales.data();
        plain(c, x, Weight::prepare(view, "faulty"), y, a);
      });
  EXPECT_GT(result.differences, 0);
  EXPECT_LT(result.differences, result.outputs / 100);  // one row of 300
  ASSERT_TRUE(result.first);
  EXPECT_EQ(result.first->column, kRow);
  EXPECT_EQ(result.first->k, std::vector<std::int64_t>{kGroup});
}

struct Fault {
  const char* name;
  /// Whether y[row, column] of this call loses its last bit.
  bool (*hits)(const Context&, const MatrixView& x, const Weight&, Activations, std::int64_t row,
               std::int64_t column);
};

constexpr Fault kFaults[] = {
    {"2 threads", [](const Context& c, const MatrixView&, const Weight&, Activations, std::int64_t,
                     std::int64_t) { return c.num_threads() == 2; }},
    {"4 threads", [](const Context& c, const MatrixView&, const Weight&, Activations, std::int64_t,
                     std::int64_t) { return c.num_threads() == 4; }},
    {"a row alone", [](const Context&, const MatrixView& x, const Weight&, Activations,
                       std::int64_t, std::int64_t) { return x.rows == 1; }},
    {"batches of 65", [](const Context&, const MatrixView& x, const Weight&, Activations,
                         std::int64_t, std::int64_t) { return x.rows == 65; }},
    {"the first of 17", [](const Context&, const MatrixView& x, const Weight&, Activations,
                           std::int64_t row, std::int64_t) { return x.rows == 17 && row == 0; }},
    {"the middle of 9", [](const Context&, const MatrixView& x, const Weight&, Activations,
                           std::int64_t row, std::int64_t) { return x.rows == 9 && row == 4; }},
    {"the last of 8", [](const Context&, const MatrixView& x, const Weight&, Activations,
                         std::int64_t row, std::int64_t) { return x.rows == 8 && row == 7; }},
    {"the last column", [](const Context&, const MatrixView&, const Weight& w, Activations,
                           std::int64_t, std::int64_t column) { return column == w.n() - 1; }},
    {"n not in whole blocks", [](const Context&, const MatrixView&, const Weight& w, Activations,
                                 std::int64_t, std::int64_t) { return w.n() % 32 == 5; }},
    {"whole layers only", [](const Context&, const MatrixView& x, const Weight& w, Activations,
                             std::int64_t, std::int64_t) { return x.rows == 1 && w.n() == 300; }},
    {"x as it lies", [](const Context&, const MatrixView&, const Weight&, Activations a,
                        std::int64_t, std::int64_t) { return a == Activations::kAsIs; }},
    {"quantized x", [](const Context&, const MatrixView&, const Weight&, Activations a,
                       std::int64_t, std::int64_t) { return a == Activations::kQuantize224; }},
};

TEST(verify_bits_test, a_wrong_last_bit_is_found_on_every_axis) {
  Opened opened;
  TinyLlama tiny;
  tiny.layers = 1;
  tiny.vocabulary = 300;
  tiny.kind = TinyLlama::Kind::kMxfp4Mixture;
  tiny.write(opened.dir.path());
  opened.open();
  for (const Fault& fault : kFaults) {
    const BitCheck result =
        check(opened.map, [&](const Context& c, const MatrixView& x, const Weight& w,
                              const MutableMatrixView& y, Activations a) {
          plain(c, x, w, y, a);
          for (std::int64_t i = 0; i < y.rows; ++i) {
            for (std::int64_t j = 0; j < y.columns; ++j) {
              if (fault.hits(c, x, w, a, i, j)) change_element(y, i, j, flip_last_bit);
            }
          }
        });
    EXPECT_GT(result.differences, 0) << fault.name;
    EXPECT_LT(result.differences, result.outputs) << fault.name;
    EXPECT_TRUE(result.first) << fault.name;
  }
}

TEST(verify_bits_test, a_fault_of_one_instruction_set_names_it) {
  Opened opened;
  write_mxfp8(opened, 100, 320);
  for (const Isa isa : usable_isas()) {
    const BitCheck result =
        check(opened.map, [&](const Context& c, const MatrixView& x, const Weight& w,
                              const MutableMatrixView& y, Activations a) {
          plain(c, x, w, y, a);
          if (c.isa() == isa) change_element(y, y.rows - 1, y.columns - 1, flip_last_bit);
        });
    ASSERT_TRUE(result.first) << isa_name(isa);
    EXPECT_EQ(result.first->isa, isa);
    EXPECT_EQ(result.first->row, result.first->m - 1);
    EXPECT_EQ(result.first->column, result.first->last - 1);
  }
}

TEST(verify_bits_test, a_fault_of_one_matrix_of_a_stack_names_it) {
  constexpr std::int64_t kN = 40;
  constexpr std::int64_t kK = 96;
  Opened opened;
  Random random(4);
  std::vector<std::uint8_t> codes = random.bytes(3 * kN * kK);
  for (std::uint8_t& code : codes) code &= 0xBF;
  SafetensorsBuilder()
      .add("w.weight", DType::kF8E4m3, {3, kN, kK}, codes)
      .add("w.weight_scale", DType::kU8, {3, kN, kK / 32},
           std::vector<std::uint8_t>(3 * kN * kK / 32, 127))
      .write(opened.dir.path() / "model.safetensors");
  opened.open();
  const auto* base = static_cast<const std::uint8_t*>(opened.map.weights()[0].view.codes);
  const BitCheck good = check(opened.map, plain);
  EXPECT_EQ(good.rows, 3 * kN);
  EXPECT_EQ(good.rows_compared, 3 * kN);
  EXPECT_EQ(good.differences, 0);
  for (const std::int64_t group : {0, 1, 2}) {
    const BitCheck result =
        check(opened.map, [&](const Context& c, const MatrixView& x, const Weight& w,
                              const MutableMatrixView& y, Activations a) {
          plain(c, x, w, y, a);
          const auto* first = static_cast<const std::uint8_t*>(w.view().codes);
          if ((first - base) / (kN * kK) == group) change_element(y, 0, 0, flip_last_bit);
        });
    ASSERT_TRUE(result.first) << group;
    EXPECT_EQ(result.first->group, group);
  }
}

TEST(verify_bits_test, rows_in_the_wrong_place_and_outputs_left_out_are_found) {
  Opened opened;
  write_mxfp8(opened, 100, 320);
  const auto swapped = [](const Context& c, const MatrixView& x, const Weight& w,
                          const MutableMatrixView& y, Activations a) {
    plain(c, x, w, y, a);
    if (y.rows < 3) return;
    const std::int64_t row_bytes = y.columns * (y.type == FloatType::kBf16 ? 2 : 4);
    auto* data = static_cast<char*>(y.data);
    std::swap_ranges(data, data + row_bytes, data + 2 * row_bytes);
  };
  EXPECT_GT(check(opened.map, swapped).differences, 0);
  const auto short_by_one = [](const Context& c, const MatrixView& x, const Weight& w,
                               const MutableMatrixView& y, Activations a) {
    MutableMatrixView fewer = y;
    fewer.rows = y.rows - 1;
    MatrixView fewer_x = x;
    fewer_x.rows = y.rows - 1;
    plain(c, fewer_x, w, fewer, a);
  };
  EXPECT_GT(check(opened.map, short_by_one).differences, 0);
}

/// Sums that are exact in any order would hide this.
TEST(verify_bits_test, another_order_of_the_sum_is_found) {
  constexpr std::int64_t kK = 1536;
  Opened opened;
  write_mxfp8(opened, 64, kK);
  const BitCheck result =
      check(opened.map, [](const Context& c, const MatrixView& x, const Weight& w,
                           const MutableMatrixView& y, Activations a) {
        // k begins at its second superblock: the three terms of each lane are then added in another
        // order. (Of two, the order would not matter.)
        WeightView view = w.view();
        std::vector<std::uint8_t> codes(static_cast<std::size_t>(view.n * kK));
        std::vector<std::uint8_t> scales(static_cast<std::size_t>(view.n * kK / 32));
        std::vector<std::uint16_t> rotated(static_cast<std::size_t>(x.rows * kK));
        const auto rotate = [](auto* out, const auto* in, std::int64_t rows, std::int64_t columns) {
          for (std::int64_t i = 0; i < rows * columns; ++i) {
            const std::int64_t column = i % columns;
            out[i] = in[i - column + (column + columns / 3) % columns];
          }
        };
        rotate(codes.data(), static_cast<const std::uint8_t*>(view.codes), view.n, kK);
        rotate(scales.data(), static_cast<const std::uint8_t*>(view.scales), view.n, kK / 32);
        rotate(rotated.data(), static_cast<const std::uint16_t*>(x.data), x.rows, kK);
        view.codes = codes.data();
        view.scales = scales.data();
        plain(c, {rotated.data(), x.type, x.rows, kK, 0}, Weight::prepare(view, "rotated"), y, a);
      });
  EXPECT_GT(result.differences, 0);
  ASSERT_TRUE(result.first);
  EXPECT_TRUE(result.first->k.empty());  // each block alone is right
}

}  // namespace
}  // namespace deepinfer::models
