// What must hold for every call, tried on generated ones: independence of rows and slices, order of
// rows, the quantizer, powers of two. RC_PARAMS chooses another seed or more cases, e.g.
// RC_PARAMS="seed=7 max_success=10000"; a failure prints the smallest case and how to repeat it.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <numeric>
#include <ostream>

#include "deepinfer/linear.h"
#include "formats/bf16.h"
#include "kernels/registry.h"
#include "test_weights.h"
#include "usable_isas.h"

namespace deepinfer {
namespace {

using test::Random;
using test::TestWeight;
using test::usable_isas;

/// The same cases in every run unless somebody asks for others; read at the first property.
const int kSeeded = setenv("RC_PARAMS", "seed=2026 max_success=200", 0);

/// A call: sizes and choices shrink, the data follow from the seed.
struct Call {
  std::size_t format;  // of test::kFormatCases
  std::size_t isa;     // of usable_isas()
  std::int64_t m, n, k;
  int threads;
  Activations activations;
  std::uint64_t seed;

  const test::FormatCase& format_case() const { return test::kFormatCases[format]; }
};

std::ostream& operator<<(std::ostream& out, const Call& c) {
  return out << c.format_case().name << " " << isa_name(usable_isas()[c.isa]) << " m=" << c.m
             << " n=" << c.n << " k=" << c.k << " threads=" << c.threads
             << " activations=" << static_cast<int>(c.activations) << " seed=" << c.seed;
}

Call any_call() {
  using rc::gen::inRange;
  Call c = {};
  c.format = *inRange<std::size_t>(0, std::size(test::kFormatCases));
  c.isa = *inRange<std::size_t>(0, usable_isas().size());
  // a few rows, for which there are kernels of their own, or more than one call's worth of 64
  c.m = *rc::gen::oneOf(inRange<std::int64_t>(1, 9), inRange<std::int64_t>(60, 140));
  c.n = *inRange<std::int64_t>(1, 80);
  c.k = 2 * *inRange<std::int64_t>(1, 320);
  c.threads = *inRange(1, 4);
  c.activations =
      *rc::gen::element(Activations::kAsIs, Activations::kQuantize224, Activations::kQuantize448);
  c.seed = *inRange<std::uint64_t>(0, 1U << 20);
  RC_LOG() << c << "\n";
  return c;
}

const Context& context_of(const Call& c) {
  static std::map<std::pair<std::size_t, int>, std::unique_ptr<Context>> contexts;
  std::unique_ptr<Context>& context = contexts[{c.isa, c.threads}];
  if (!context) {
    context = std::make_unique<Context>(
        ContextOptions{.num_threads = c.threads, .isa = usable_isas()[c.isa]});
  }
  return *context;
}

TestWeight weight_of(const Call& c) {
  Random random(c.seed);
  return test::random_weight(random, c.format_case(), c.n, c.k);
}

/// [rows, k], exponents spread over +-`spread`, all mantissa bits of f32.
std::vector<float> x_of(const Call& c, int spread) {
  Random random(c.seed + 1);
  std::vector<float> x(static_cast<std::size_t>(c.m * c.k));
  for (float& v : x) {
    const auto low = static_cast<std::uint32_t>(random.next() & 0xFFFF);
    v = formats::float_of((static_cast<std::uint32_t>(random.bf16(spread)) << 16) | low);
  }
  return x;
}

using Bits = std::vector<std::uint32_t>;

/// y [m, n] as bits, for the rows of x that `data` begins with.
Bits run(const Call& c, const float* data, std::int64_t m, const Weight& w) {
  Bits y(static_cast<std::size_t>(m * w.n()), 0x7FABCDEFU);
  linear(context_of(c), {data, FloatType::kF32, m, w.k(), 0}, w,
         {y.data(), FloatType::kF32, m, w.n(), 0}, c.activations);
  return y;
}

template <class T>
std::vector<T> row_of(const std::vector<T>& matrix, std::int64_t row, std::int64_t columns) {
  const auto begin = matrix.begin() + row * columns;
  return {begin, begin + columns};
}

RC_GTEST_PROP(property_test, a_row_alone_gives_its_bits_in_any_batch, ()) {
  const Call c = any_call();
  const TestWeight t = weight_of(c);
  const Weight w = t.prepare();
  const std::vector<float> x = x_of(c, 20);
  const Bits whole = run(c, x.data(), c.m, w);
  const auto row = *rc::gen::inRange<std::int64_t>(0, c.m);
  RC_ASSERT(run(c, x.data() + row * c.k, 1, w) == row_of(whole, row, c.n));
  // and as the last row of a smaller batch
  const Bits part = run(c, x.data(), row + 1, w);
  RC_ASSERT(row_of(part, row, c.n) == row_of(whole, row, c.n));
}

RC_GTEST_PROP(property_test, permuted_rows_of_x_give_permuted_rows_of_y, ()) {
  const Call c = any_call();
  const TestWeight t = weight_of(c);
  const Weight w = t.prepare();
  const std::vector<float> x = x_of(c, 20);
  const Bits y = run(c, x.data(), c.m, w);
  std::vector<std::int64_t> order(static_cast<std::size_t>(c.m));
  std::iota(order.begin(), order.end(), 0);
  Random random(c.seed + 2);
  for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
  std::vector<float> permuted;
  Bits expected;
  for (const std::int64_t row : order) {
    const std::vector<float> x_row = row_of(x, row, c.k);
    const Bits y_row = row_of(y, row, c.n);
    permuted.insert(permuted.end(), x_row.begin(), x_row.end());
    expected.insert(expected.end(), y_row.begin(), y_row.end());
  }
  RC_ASSERT(run(c, permuted.data(), c.m, w) == expected);
}

RC_GTEST_PROP(property_test, a_slice_of_rows_of_w_gives_its_columns_of_y, ()) {
  const Call c = any_call();
  const TestWeight t = weight_of(c);
  const std::vector<float> x = x_of(c, 20);
  const Bits whole = run(c, x.data(), c.m, t.prepare());
  const auto first = *rc::gen::inRange<std::int64_t>(0, c.n);
  const auto count = *rc::gen::inRange<std::int64_t>(1, c.n - first + 1);
  const Weight sliced = Weight::prepare(slice(t.view, first, count, 0, c.k), "slice");
  const Bits part = run(c, x.data(), c.m, sliced);
  for (std::int64_t row = 0; row < c.m; ++row) {
    const auto begin = whole.begin() + row * c.n + first;
    RC_ASSERT(row_of(part, row, count) == Bits(begin, begin + count));
  }
}

/// Scaling x by 2^p scales y by 2^p, where nothing meets a limit: amax stays above its floor, x
/// above 2^-100, results are normal and do not overflow.
RC_GTEST_PROP(property_test, powers_of_two_pass_through, ()) {
  const Call c = any_call();
  const TestWeight t = weight_of(c);
  const Weight w = t.prepare();
  std::vector<float> x = x_of(c, 10);  // 2^-10 and more: with 2^-2 still above the floor of 1e-4
  const Bits y = run(c, x.data(), c.m, w);
  const auto power = *rc::gen::inRange(-2, 21);
  for (float& v : x) v = std::ldexp(v, power);
  const Bits scaled = run(c, x.data(), c.m, w);
  for (std::size_t i = 0; i < y.size(); ++i) {
    const float expected = std::ldexp(formats::float_of(y[i]), power);
    RC_ASSERT(formats::float_of(scaled[i]) == expected);
  }
}

// ---- the quantizer of activations, in every instruction set ----

/// Rows as activations are: exponents of a row around one of its own; some tiny, zero or not
/// finite.
std::vector<std::uint16_t> quantizer_row() {
  const auto length = *rc::gen::inRange<std::size_t>(1, 200);
  const auto middle = *rc::gen::inRange(20, 230);
  const auto kind = *rc::gen::inRange(0, 6);
  Random random(*rc::gen::inRange<std::uint64_t>(0, 1U << 20));
  std::vector<std::uint16_t> x(length);
  for (std::uint16_t& v : x) {
    const auto exponent = static_cast<std::uint64_t>(middle) + random.below(12);
    v = static_cast<std::uint16_t>((random.next() & 0x807FU) | (exponent << 7));
  }
  if (kind == 0) x[random.below(length)] = 0x7FC0;
  if (kind == 1) x[random.below(length)] = 0xFF80;
  if (kind == 2) x[random.below(length)] = 0x7F7F;
  if (kind == 3) std::fill(x.begin(), x.end(), std::uint16_t{0x8000});
  return x;
}

std::vector<std::uint16_t> quantize(Isa isa, const std::vector<std::uint16_t>& x,
                                    formats::ScaleLimit limit) {
  std::vector<std::uint16_t> xq(x.size());
  kernels::table_of(isa).rows->quantize_bf16(x.data(), static_cast<std::int64_t>(x.size()), limit,
                                             xq.data());
  return xq;
}

RC_GTEST_PROP(property_test, quantizing_twice_at_one_limit_changes_no_value, ()) {
  const std::vector<std::uint16_t> x = quantizer_row();
  for (const formats::ScaleLimit limit : {formats::kLimit224, formats::kLimit448}) {
    const std::vector<std::uint16_t> expected = quantize(Isa::kRef, x, limit);
    for (const Isa isa : usable_isas()) {
      const std::vector<std::uint16_t> once = quantize(isa, x, limit);
      RC_ASSERT(once == expected);
      RC_ASSERT(quantize(isa, once, limit) == once);
    }
  }
}

/// From bf16 and from f32 x of the same values the quantizer makes the same.
RC_GTEST_PROP(property_test, the_type_of_x_does_not_matter_to_the_quantizer, ()) {
  const std::vector<std::uint16_t> x = quantizer_row();
  std::vector<float> wide;
  for (const std::uint16_t v : x) wide.push_back(formats::decode_bf16(v));
  for (const Isa isa : usable_isas()) {
    std::vector<std::uint16_t> xq(x.size());
    kernels::table_of(isa).rows->quantize_f32(wide.data(), static_cast<std::int64_t>(x.size()),
                                              formats::kLimit224, xq.data());
    RC_ASSERT(xq == quantize(isa, x, formats::kLimit224));
  }
}

/// Halving the limit of what was quantized at 448 costs a bit where a code was odd and small.
TEST(quantizer_test, quantizing_at_448_and_then_at_224_changes_some_values) {
  Random random(5);
  std::vector<std::uint16_t> x(1 << 16);
  for (std::uint16_t& v : x) v = random.bf16(8);
  for (const Isa isa : usable_isas()) {
    const std::vector<std::uint16_t> at448 = quantize(isa, x, formats::kLimit448);
    const std::vector<std::uint16_t> at224 = quantize(isa, at448, formats::kLimit224);
    std::size_t changed = 0;
    for (std::size_t i = 0; i < x.size(); ++i) changed += at448[i] != at224[i] ? 1 : 0;
    EXPECT_GT(changed, 0U) << isa_name(isa);
    EXPECT_EQ(quantize(isa, at224, formats::kLimit448), at224) << "a larger limit loses nothing";
    RecordProperty(std::string(isa_name(isa)), static_cast<int>(changed));
    std::printf("%s: %zu of %zu values\n", std::string(isa_name(isa)).c_str(), changed, x.size());
  }
}

}  // namespace
}  // namespace deepinfer
