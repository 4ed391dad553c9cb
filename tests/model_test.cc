// Every family on tiny random checkpoints of every format, and, where it has been made, on the real
// model: the same bits on every instruction set, thread count and split of the prompt.
#include "deepinfer/model.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "deepinfer/error.h"
#include "kernels/registry.h"
#include "tiny_llama.h"
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace deepinfer {
namespace {

using testing::TempDir;
using testing::TinyLlama;
using Kind = TinyLlama::Kind;
using Ids = std::vector<std::int32_t>;

struct Outcome {
  Ids ids;
  std::vector<float> logits;  // after the prompt and after each step
};

void keep(std::span<const float> logits, Outcome& out) {
  out.logits.insert(out.logits.end(), logits.begin(), logits.end());
  out.ids.push_back(
      static_cast<std::int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin()));
}

/// Feeds the prompt whole or token by token, then `steps` greedy tokens.
Outcome generate(Model& model, const Context& context, const Ids& prompt, int steps, bool whole) {
  const auto session = model.new_session(context, static_cast<std::int64_t>(prompt.size()) + steps);
  Outcome out;
  std::span<const float> logits;
  if (whole) {
    logits = session->feed(prompt);
  } else {
    for (const std::int32_t id : prompt) logits = session->feed(std::span(&id, 1));
  }
  keep(logits, out);
  for (int i = 0; i < steps; ++i) {
    const std::int32_t id = out.ids.back();
    keep(session->feed(std::span(&id, 1)), out);
  }
  return out;
}

void expect_same_bits(const Outcome& a, const Outcome& b, const std::string& what) {
  EXPECT_EQ(a.ids, b.ids) << what;
  ASSERT_EQ(a.logits.size(), b.logits.size()) << what;
  EXPECT_EQ(std::memcmp(a.logits.data(), b.logits.data(), a.logits.size() * sizeof(float)), 0)
      << what;
}

std::vector<Isa> usable_isas() {
  std::vector<Isa> out;
  for (const kernels::IsaTable* table : kernels::isa_tables()) {
    const auto reason = kernels::why_not(table->isa);
    if (!reason) {
      out.push_back(table->isa);
    } else {
      GTEST_LOG_(WARNING) << "NOT TESTED HERE: " << table->name << ": " << *reason;
    }
  }
  return out;
}

void expect_bits_that_depend_on_nothing(const TinyLlama& tiny) {
  const Ids prompt = {1, 5, 69, 0, 33, 12, 7};
  const TempDir dir;
  tiny.write(dir.path());
  const auto model = Model::open(dir.path());
  EXPECT_EQ(model->info().model_type, tiny.family);
  const Context reference({.num_threads = 1, .isa = Isa::kRef});
  const Outcome expected = generate(*model, reference, prompt, 9, true);
  for (const float logit : expected.logits) ASSERT_TRUE(std::isfinite(logit));
  for (const Isa isa : usable_isas()) {
    for (const int threads : {1, 2, 3}) {
      const Context context({.num_threads = threads, .isa = isa});
      for (const bool whole : {true, false}) {
        expect_same_bits(generate(*model, context, prompt, 9, whole), expected,
                         fmt::format("{} kind {} {} {} threads whole={}", tiny.family,
                                     static_cast<int>(tiny.kind), isa_name(isa), threads, whole));
      }
    }
  }
}

TEST(model_test, bits_depend_on_nothing_but_the_model_and_the_tokens) {
  for (const std::string_view family : Model::families()) {
    for (const Kind kind : TinyLlama::kKinds) {
      TinyLlama tiny;
      tiny.family = family;
      tiny.kind = kind;
      expect_bits_that_depend_on_nothing(tiny);
    }
  }
}

TEST(model_test, real_model_gives_the_same_bits_everywhere) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "minutes under a sanitizer; the tiny models take the same paths";
#endif
  const std::filesystem::path models = std::filesystem::path(DEEPINFER_SOURCE_DIR) / "build/models";
  const Ids prompt = {504, 3575, 282, 4649, 314};  // "The capital of France is"
  for (const char* name : {"smollm2-bf16", "smollm2-fp8-32x32", "smollm2-mxfp4"}) {
    if (!std::filesystem::exists(models / name)) {
      GTEST_SKIP() << "NOT TESTED: " << (models / name).string()
                   << " is missing: run `make models`";
    }
    const auto model = Model::open(models / name);
    const Context reference({.num_threads = 2, .isa = Isa::kRef});
    const Outcome expected = generate(*model, reference, prompt, 1, true);
    for (const Isa isa : usable_isas()) {
      if (isa == Isa::kRef) continue;
      for (const int threads : {1, 2, 3}) {
        const Context context({.num_threads = threads, .isa = isa});
        for (const bool whole : {true, false}) {
          expect_same_bits(
              generate(*model, context, prompt, 1, whole), expected,
              fmt::format("{} {} {} threads whole={}", name, isa_name(isa), threads, whole));
        }
      }
    }
  }
}

TEST(model_test, long_prompts_are_cut_into_chunks_without_a_trace) {
  for (const std::string_view family : Model::families()) {
    const TempDir dir;
    TinyLlama tiny;
    tiny.family = family;
    tiny.kind = Kind::kFp8;
    tiny.max_positions = 512;
    tiny.write(dir.path());
    const auto model = Model::open(dir.path());
    const Context context;
    test::Random random(3);
    Ids prompt(300);
    for (std::int32_t& id : prompt) id = static_cast<std::int32_t>(random.below(70));
    const Outcome whole = generate(*model, context, prompt, 0, true);
    expect_same_bits(generate(*model, context, prompt, 0, false), whole,
                     tiny.family + " token by token");

    const auto session = model->new_session(context, 300);  // all rows of one call
    const std::span<const float> all = session->feed_all(prompt);
    ASSERT_EQ(all.size(), 300U * 70U);
    EXPECT_EQ(std::memcmp(all.data() + 299 * 70, whole.logits.data(), 70 * sizeof(float)), 0);
  }
}

TEST(model_test, truncate_goes_back_without_a_trace) {
  const TempDir dir;
  TinyLlama().write(dir.path());
  const auto model = Model::open(dir.path());
  const Context context;
  const auto session = model->new_session(context, 8);
  const Ids first = {1, 2, 3};
  const Ids second = {4, 5};
  session->feed(first);
  const std::span<const float> fresh = session->feed(second);
  const std::vector<float> expected(fresh.begin(), fresh.end());
  session->truncate(0);
  session->feed(Ids{9, 9, 9, 9});
  session->truncate(0);
  session->feed(first);
  const std::span<const float> again = session->feed(second);
  EXPECT_EQ(std::memcmp(again.data(), expected.data(), expected.size() * sizeof(float)), 0);
}

TEST(model_test, losses_are_those_of_the_logits) {
  const TempDir dir;
  TinyLlama().write(dir.path());
  const auto model = Model::open(dir.path());
  const Context context;
  const auto session = model->new_session(context, 8);
  const Ids tokens = {3, 1, 4, 1, 5};
  const Ids next = {1, 4, 1, 5, 9};
  const std::vector<double> losses = session->losses(tokens, next);
  session->truncate(0);
  const std::span<const float> logits = session->feed_all(tokens);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    double sum = 0;
    for (std::size_t j = 0; j < 70; ++j) sum += std::exp(static_cast<double>(logits[i * 70 + j]));
    const double expected =
        std::log(sum) - static_cast<double>(logits[i * 70 + static_cast<std::size_t>(next[i])]);
    EXPECT_NEAR(losses[i], expected, 1e-5);
  }
}

TEST(model_test, counters_follow_their_formulas) {
  const TempDir dir;
  TinyLlama tiny;
  tiny.kind = Kind::kMxfp4Mixture;
  tiny.write(dir.path());
  const auto model = Model::open(dir.path());
  const ModelInfo& info = model->info();
  EXPECT_EQ(info.kv_bytes_per_position, 2 * tiny.layers * tiny.kv_heads * tiny.head_dim * 2);
  const auto fp8 = [](std::int64_t n, std::int64_t k) {
    return n * k + (n + 31) / 32 * ((k + 31) / 32);
  };
  const auto mxfp4 = [](std::int64_t n, std::int64_t k) { return n * k / 2 + n * ((k + 31) / 32); };
  const std::int64_t q = tiny.heads * tiny.head_dim;
  const std::int64_t kv = tiny.kv_heads * tiny.head_dim;
  const std::int64_t attention = 2 * fp8(q, tiny.hidden) + 2 * fp8(kv, tiny.hidden);
  const std::int64_t mlp =
      2 * mxfp4(tiny.intermediate, tiny.hidden) + mxfp4(tiny.hidden, tiny.intermediate);
  EXPECT_EQ(info.decode_weight_bytes,
            tiny.layers * (attention + mlp) + tiny.vocabulary * tiny.hidden * 2);
  EXPECT_EQ(info.private_weight_bytes, 0);
  EXPECT_EQ(info.checkpoint_bytes, std::filesystem::file_size(dir.path() / "model.safetensors"));
  const Context context;
  const auto session = model->new_session(context, 40);
  EXPECT_EQ(session->kv_bytes(), 40 * info.kv_bytes_per_position);
  EXPECT_EQ(info.end_ids, Ids{2});
}

TEST(model_test, nan_is_named_with_its_layer) {
  const TempDir dir;
  TinyLlama tiny;
  tiny.kind = Kind::kFp8;
  tiny.change = [](std::string& name, DType&, std::vector<std::int64_t>&,
                   std::vector<std::uint8_t>& bytes) {
    if (name == "model.layers.1.mlp.down_proj.weight") bytes[5] = 0x7F;
  };
  tiny.write(dir.path());
  const auto model = Model::open(dir.path());
  const Context context;
  const auto session = model->new_session(context, 8);
  try {
    session->feed(Ids{1, 2});
    FAIL() << "NaN went through";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kBadInput);
    EXPECT_NE(std::string(error.what()).find("model.layers.1.mlp"), std::string::npos)
        << error.what();
  }
  EXPECT_EQ(session->position(), 0);  // unchanged
}

#if defined(__x86_64__)
TEST(model_test, the_callers_rounding_mode_changes_nothing) {
  const TempDir dir;
  TinyLlama tiny;
  tiny.kind = Kind::kFp8;
  tiny.write(dir.path());
  const Context context;
  const Ids prompt = {1, 5, 69, 0, 33, 12, 7, 8, 9, 10, 11};
  const auto expected = generate(*Model::open(dir.path()), context, prompt, 3, true);
  const unsigned before = _mm_getcsr();
  for (const unsigned mode : {0x3F80U, 0x5F80U, 0x7F80U, 0x9FC0U, 0x0F80U}) {
    _mm_setcsr(mode);
    const auto model = Model::open(dir.path());
    const Outcome got = generate(*model, context, prompt, 3, true);
    _mm_setcsr(before);
    expect_same_bits(got, expected, fmt::format("MXCSR {:04x}", mode));
  }
}
#endif

TEST(model_test, losses_leave_the_session_alone_when_they_refuse) {
  const TempDir dir;
  TinyLlama tiny;
  tiny.max_positions = 512;
  tiny.write(dir.path());
  const auto model = Model::open(dir.path());
  const Context context;
  const auto session = model->new_session(context, 200);
  const Ids tokens(300, 1);
  EXPECT_THROW(session->losses(tokens, tokens), Error);
  EXPECT_EQ(session->position(), 0);
}

TEST(model_test, sessions_refuse_what_cannot_be) {
  const TempDir dir;
  TinyLlama().write(dir.path());
  const auto model = Model::open(dir.path());
  const Context context;
  EXPECT_THROW(model->new_session(context, 0), Error);
  EXPECT_THROW(model->new_session(context, 65), Error);  // max_positions is 64
  const auto session = model->new_session(context, 4);
  EXPECT_THROW(session->feed({}), Error);
  EXPECT_THROW(session->feed(Ids{70}), Error);
  EXPECT_THROW(session->feed(Ids{-1}), Error);
  EXPECT_THROW(session->feed(Ids{1, 2, 3, 4, 5}), Error);
  EXPECT_EQ(session->position(), 0);
  session->feed(Ids{1, 2, 3, 4});
  EXPECT_THROW(session->feed(Ids{1}), Error);
}

}  // namespace
}  // namespace deepinfer
