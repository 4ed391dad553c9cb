// Layers of experts against loops over one token and one expert, written from
// docs/determinism.md: bits depend on nothing but a token's own row, ids and weights.
#include "deepinfer/experts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "deepinfer/error.h"
#include "formats/bf16.h"
#include "kernels/math.h"
#include "test_weights.h"

namespace deepinfer {
namespace {

using formats::decode_bf16;
using formats::store_bf16;
using test::Random;
using test::TestWeight;

constexpr std::int64_t kExperts = 7;
constexpr std::int64_t kHidden = 72;
constexpr std::int64_t kWidth = 44;

struct Stack {
  std::vector<TestWeight> parts;
  PreparedWeight weight;
};

Stack random_stack(Random& random, const test::FormatCase& format, std::int64_t n, std::int64_t k) {
  std::vector<TestWeight> parts;
  std::vector<Weight> weights;
  for (std::int64_t g = 0; g < kExperts; ++g) {
    parts.push_back(test::random_weight(random, format, n, k));
    weights.push_back(parts.back().prepare());
  }
  return {std::move(parts), PreparedWeight::stack(std::move(weights))};
}

std::vector<std::uint16_t> random_rows(Random& random, std::int64_t count, int spread) {
  std::vector<std::uint16_t> x(static_cast<std::size_t>(count));
  for (std::uint16_t& v : x) v = random.bf16(spread);
  return x;
}

float rounded(float value) { return decode_bf16(store_bf16(value)); }

/// One layer with all its parts.
class Layer {
 public:
  Layer(Random& random, const test::FormatCase& format, bool fused, bool biases)
      : gate_(random_stack(random, format, fused ? 2 * kWidth : kWidth, kHidden)),
        up_(random_stack(random, format, kWidth, kHidden)),
        down_(random_stack(random, format, kHidden, kWidth)),
        gate_bias_(test::random_floats(random, kExperts * 2 * kWidth)),
        down_bias_(test::random_floats(random, kExperts * kHidden)) {
    w_.gate = &gate_.weight;
    if (!fused) w_.up = &up_.weight;
    w_.down = &down_.weight;
    if (biases) {
      w_.gate_bias = gate_bias_.data();
      w_.down_bias = down_bias_.data();
    }
  }

  ExpertWeights& weights() { return w_; }

  /// The bf16 output of one expert for one row, before an RoutingWeight::kAfterDown.
  std::vector<float> expert(const Context& context, const std::uint16_t* x, std::int64_t e,
                            float weight, const ExpertRules& rules) const {
    const bool fused = w_.up == nullptr;
    const std::vector<float> first =
        multiply(context, x, kHidden, w_.gate->at(e), w_.gate_bias, e, rules);
    const std::vector<float> second =
        fused ? first : multiply(context, x, kHidden, w_.up->at(e), nullptr, e, rules);
    std::vector<std::uint16_t> h;
    for (std::size_t i = 0; i < kWidth; ++i) {
      float g = fused ? first[2 * i] : first[i];
      float u = fused ? first[2 * i + 1] : second[i];
      if (g > rules.limit) g = rules.limit;
      if (u > rules.limit) u = rules.limit;
      if (u < -rules.limit) u = -rules.limit;
      const float w = rules.weight == RoutingWeight::kBeforeDown ? weight : 1.0F;
      switch (rules.activation) {
        case ExpertActivation::kSilu:
          h.push_back(store_bf16(g / (1.0F + kernels::exp32(-g)) * u * w));
          break;
        case ExpertActivation::kSiluRounded:
          h.push_back(store_bf16(rounded(rounded(g / (1.0F + kernels::exp32(-g))) * u) * w));
          break;
        case ExpertActivation::kGptOss: {
          const float s = rounded(1.0F / (1.0F + kernels::exp32(-rounded(g * 1.702F))));
          h.push_back(store_bf16(rounded(rounded(u + 1.0F) * rounded(g * s)) * w));
          break;
        }
      }
    }
    return multiply(context, h.data(), kWidth, w_.down->at(e), w_.down_bias, e, rules);
  }

 private:
  static std::vector<float> multiply(const Context& context, const std::uint16_t* x, std::int64_t k,
                                     const Weight& w, const float* biases, std::int64_t e,
                                     const ExpertRules& rules) {
    std::vector<std::uint16_t> y(static_cast<std::size_t>(w.n()));
    linear(context, {x, FloatType::kBf16, 1, k, 0}, w, {y.data(), FloatType::kBf16, 1, w.n(), 0},
           rules.activations, biases != nullptr ? biases + e * w.n() : nullptr);
    std::vector<float> out;
    for (const std::uint16_t v : y) out.push_back(decode_bf16(v));
    return out;
  }

  Stack gate_;
  Stack up_;
  Stack down_;
  std::vector<float> gate_bias_;
  std::vector<float> down_bias_;
  ExpertWeights w_;
};

struct Tokens {
  std::vector<std::uint16_t> x;
  std::vector<std::int32_t> ids;
  std::vector<float> weights;
  std::int64_t top_k;

  std::int64_t count() const { return static_cast<std::int64_t>(x.size()) / kHidden; }
};

/// Ids with -1, duplicates, and expert 5 never used.
Tokens random_tokens(Random& random, std::int64_t count, std::int64_t top_k) {
  Tokens t = {random_rows(random, count * kHidden, 3), {}, {}, top_k};
  for (std::int64_t i = 0; i < count * top_k; ++i) {
    const auto id = static_cast<std::int32_t>(random.next() % (kExperts + 1)) - 1;
    t.ids.push_back(id == 5 ? 2 : id);
    t.weights.push_back(static_cast<float>(random.next() % 1000) / 500.0F);
  }
  return t;
}

std::vector<float> expected_row(const Context& context, const Layer& layer, const Tokens& t,
                                std::int64_t token, const ExpertRules& rules) {
  std::vector<std::int64_t> slots(static_cast<std::size_t>(t.top_k));
  std::iota(slots.begin(), slots.end(), token * t.top_k);
  std::stable_sort(slots.begin(), slots.end(), [&](std::int64_t a, std::int64_t b) {
    return t.ids[static_cast<std::size_t>(a)] < t.ids[static_cast<std::size_t>(b)];
  });
  std::vector<float> sum(kHidden, 0.0F);
  for (const std::int64_t slot : slots) {
    const std::int32_t id = t.ids[static_cast<std::size_t>(slot)];
    if (id < 0) continue;
    const float weight = t.weights[static_cast<std::size_t>(slot)];
    const std::vector<float> out =
        layer.expert(context, t.x.data() + token * kHidden, id, weight, rules);
    for (std::size_t i = 0; i < kHidden; ++i) {
      sum[i] += rules.weight == RoutingWeight::kAfterDown ? rounded(out[i] * weight) : out[i];
      if (rules.round_each_add) sum[i] = rounded(sum[i]);
    }
  }
  return sum;
}

std::vector<float> run(const Context& context, Layer& layer, const Tokens& t,
                       const ExpertRules& rules) {
  std::vector<float> y(static_cast<std::size_t>(t.count() * kHidden), -77.0F);
  experts(context, {t.x.data(), FloatType::kBf16, t.count(), kHidden, 0}, t.ids, t.weights,
          layer.weights(), rules, {y.data(), FloatType::kF32, t.count(), kHidden, 0});
  return y;
}

struct Variant {
  const char* name;
  ExpertRules rules;
  bool fused;
  bool biases;
};

const Variant kVariants[] = {
    {"deepseek_v4", {.limit = 10.0F}, false, false},
    {"qwen3_moe",
     {.activation = ExpertActivation::kSiluRounded,
      .weight = RoutingWeight::kAfterDown,
      .round_each_add = true},
     false,
     false},
    {"gpt_oss",
     {.activation = ExpertActivation::kGptOss,
      .weight = RoutingWeight::kAfterDown,
      .limit = 7.0F,
      .activations = Activations::kAsIs},
     true,
     true},
};

TEST(experts_test, every_variant_and_format_gives_the_bits_of_a_loop) {
  const Context reference({.num_threads = 1, .isa = Isa::kRef});
  for (const Variant& variant : kVariants) {
    for (const test::FormatCase& format : test::kFormatCases) {
      Random random(5);
      Layer layer(random, format, variant.fused, variant.biases);
      const Tokens t = random_tokens(random, 6, 3);
      for (const int threads : {1, 3}) {
        const Context context({.num_threads = threads});
        const std::vector<float> y = run(context, layer, t, variant.rules);
        for (std::int64_t token = 0; token < t.count(); ++token) {
          const std::vector<float> expected =
              expected_row(reference, layer, t, token, variant.rules);
          for (std::size_t i = 0; i < kHidden; ++i) {
            const float got = y[static_cast<std::size_t>(token) * kHidden + i];
            ASSERT_EQ(formats::bits_of(got), formats::bits_of(formats::store_f32(expected[i])))
                << variant.name << " " << format.name << " token " << token << " feature " << i;
          }
        }
      }
    }
  }
}

TEST(experts_test, tokens_may_come_in_any_order_and_batch) {
  Random random(6);
  Layer layer(random, test::kFormatCases[1], false, false);
  const Tokens t = random_tokens(random, 40, 3);
  const Context context;
  const ExpertRules rules;
  const std::vector<float> whole = run(context, layer, t, rules);
  for (std::int64_t token = 0; token < t.count(); ++token) {
    Tokens one = {{}, {}, {}, t.top_k};
    one.x.assign(t.x.begin() + token * kHidden, t.x.begin() + (token + 1) * kHidden);
    for (std::int64_t i = t.top_k - 1; i >= 0; --i) {  // slots reversed, too
      const auto slot = static_cast<std::size_t>(token * t.top_k + i);
      one.ids.push_back(t.ids[slot]);
      one.weights.push_back(t.weights[slot]);
    }
    const bool distinct =
        one.ids[0] != one.ids[1] && one.ids[1] != one.ids[2] && one.ids[0] != one.ids[2];
    if (!distinct) continue;
    const std::vector<float> alone = run(context, layer, one, rules);
    EXPECT_EQ(std::memcmp(alone.data(), whole.data() + token * kHidden, kHidden * 4), 0) << token;
  }
}

TEST(experts_test, the_shared_expert_comes_last_without_a_weight) {
  Random random(7);
  const test::FormatCase& format = test::kFormatCases[1];
  Layer layer(random, format, false, false);
  Layer shared(random, format, false, false);
  const Tokens t = random_tokens(random, 5, 2);
  const Context context;
  const ExpertRules rules = {.limit = 10.0F};
  const std::vector<float> routed = run(context, layer, t, rules);
  layer.weights().shared_gate = &shared.weights().gate->at(3);
  layer.weights().shared_up = &shared.weights().up->at(3);
  layer.weights().shared_down = &shared.weights().down->at(3);
  const std::vector<float> both = run(context, layer, t, rules);
  for (std::int64_t token = 0; token < t.count(); ++token) {
    const std::vector<float> own =
        shared.expert(context, t.x.data() + token * kHidden, 3, 1.0F, rules);
    for (std::size_t i = 0; i < kHidden; ++i) {
      const std::size_t at = static_cast<std::size_t>(token) * kHidden + i;
      EXPECT_EQ(both[at], routed[at] + own[i]) << token << " " << i;
    }
  }
}

TEST(experts_test, case_057_no_tokens_and_case_059_no_expert) {
  Random random(8);
  Layer layer(random, test::kFormatCases[1], false, false);
  const Context context;
  experts(context, {nullptr, FloatType::kBf16, 0, kHidden, 0}, {}, {}, layer.weights(), {},
          {nullptr, FloatType::kF32, 0, kHidden, 0});
  Tokens t = random_tokens(random, 2, 2);
  t.ids = {0, -1, 1, 0};
  t.weights = {0.5F, 0.5F, 0.5F, 0.5F};
  const std::vector<float> y = run(context, layer, t, {});
  const std::vector<float> f0 = layer.expert(context, t.x.data(), 0, 0.5F, {});
  for (std::size_t i = 0; i < kHidden; ++i) EXPECT_EQ(y[i], f0[i]);
  const std::vector<float> second = expected_row(context, layer, t, 1, {});
  for (std::size_t i = 0; i < kHidden; ++i) EXPECT_EQ(y[kHidden + i], second[i]);
  t.ids = {-1, -1, -1, -1};
  for (const float v : run(context, layer, t, {})) EXPECT_EQ(formats::bits_of(v), 0U);
}

TEST(experts_test, misuse_is_refused_by_name_before_anything_is_written) {
  Random random(9);
  Layer layer(random, test::kFormatCases[1], false, false);
  const Context context;
  const Tokens t = random_tokens(random, 2, 2);
  std::vector<float> y(2 * kHidden, -77.0F);
  const auto refused = [&](auto change, const char* word) {
    Tokens tokens = t;
    ExpertWeights w = layer.weights();
    change(tokens, w);
    try {
      experts(context, {tokens.x.data(), FloatType::kBf16, 2, kHidden, 0}, tokens.ids,
              tokens.weights, w, {}, {y.data(), FloatType::kF32, 2, kHidden, 0});
      ADD_FAILURE() << "accepted: " << word;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
    }
    for (const float v : y) ASSERT_EQ(v, -77.0F);
  };
  refused([](Tokens& s, ExpertWeights&) { s.ids[1] = kExperts; },
          "names expert 7 in place 1, of 7");
  refused([](Tokens& s, ExpertWeights&) { s.ids[1] = -2; }, "names expert -2");
  refused([](Tokens& s, ExpertWeights&) { s.ids.pop_back(); }, "weights has 4, expected 3");
  refused([](Tokens&, ExpertWeights& w) { w.down = nullptr; }, "down is null");
  refused([](Tokens&, ExpertWeights& w) { w.up = w.down; }, "up is [7, 72, 44], expected");
  refused([](Tokens&, ExpertWeights& w) { w.shared_up = &w.up->at(0); }, "the shared expert");
}

}  // namespace
}  // namespace deepinfer
