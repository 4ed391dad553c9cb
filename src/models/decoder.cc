// The forward pass of a dense decoder. Where it rounds to bf16 is listed in the families' files.
#include "models/decoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "deepinfer/error.h"
#include "models/decoder_weights.h"
#include "ops/gemm.h"
#include "ops/transformer.h"
#include "runtime/thread_pool.h"

namespace deepinfer::models {
namespace {

using Bf16 = std::uint16_t;

class DecoderModel final : public Model {
 public:
  DecoderModel(const std::filesystem::path& folder, const Config& config,
               const DecoderConfig& hyper, const ModelOptions& options)
      : hyper_(hyper), activations_(options.activations), checkpoint_(Checkpoint::open(folder)) {
    weights_ = load_decoder(checkpoint_, hyper_);
    frequencies_ = ops::rope_frequencies(hyper_.rope_base, hyper_.head_dim);
    fill_info(config);
  }

  const ModelInfo& info() const noexcept override { return info_; }
  std::unique_ptr<Session> new_session(const Context& context, std::int64_t capacity) override;

  const DecoderConfig& hyper() const noexcept { return hyper_; }
  const DecoderWeights& weights() const noexcept { return weights_; }
  Activations activations() const noexcept { return activations_; }
  const std::vector<float>& frequencies() const noexcept { return frequencies_; }

 private:
  void fill_info(const Config& config) {
    info_.model_type = config.text("model_type");
    info_.num_layers = hyper_.layers;
    info_.hidden_size = hyper_.hidden;
    info_.vocabulary_size = hyper_.vocabulary;
    info_.max_positions = hyper_.max_positions;
    info_.end_ids = config.ids("eos_token_id");
    const auto generation = checkpoint_.directory() / "generation_config.json";
    if (std::filesystem::exists(generation)) {
      for (const std::int32_t id : Config::from_file(generation).ids("eos_token_id")) {
        if (std::count(info_.end_ids.begin(), info_.end_ids.end(), id) == 0) {
          info_.end_ids.push_back(id);
        }
      }
    }
    info_.checkpoint_bytes = checkpoint_.file_bytes();
    info_.kv_bytes_per_position = 2 * hyper_.layers * hyper_.kv_heads * hyper_.head_dim *
                                  static_cast<std::int64_t>(sizeof(Bf16));
    const auto count = [&](const Weight& w) {
      info_.decode_weight_bytes += w.bytes();
      info_.private_weight_bytes += w.private_bytes();
    };
    for (const DecoderLayer& l : weights_.layers) {
      for (const Weight* w : {&l.q, &l.k, &l.v, &l.o, &l.gate, &l.up, &l.down}) count(*w);
    }
    count(weights_.head);
  }

  DecoderConfig hyper_;
  Activations activations_;
  Checkpoint checkpoint_;
  DecoderWeights weights_;
  std::vector<float> frequencies_;
  ModelInfo info_;
};

// Tokens that go through the layers together: bounds the buffers, never changes a bit.
constexpr std::int64_t kChunk = 128;

class DecoderSession final : public Session {
 public:
  DecoderSession(const DecoderModel& model, const Context& context, std::int64_t capacity)
      : model_(model), context_(context), h_(model.hyper()), capacity_(capacity) {
    kv_.reserve(capacity * model.info().kv_bytes_per_position);
  }

  std::span<const float> feed(std::span<const std::int32_t> tokens) override {
    return run(tokens, false);
  }
  std::span<const float> feed_all(std::span<const std::int32_t> tokens) override {
    return run(tokens, true);
  }

  std::vector<double> losses(std::span<const std::int32_t> tokens,
                             std::span<const std::int32_t> next) override {
    if (tokens.size() != next.size()) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("losses: {} tokens but {} next ones", tokens.size(), next.size()));
    }
    check(tokens);
    for (const std::int32_t id : next) check_token(id);
    const std::int64_t before = position_;
    std::vector<double> out;
    try {
      for (std::size_t begin = 0; begin < tokens.size(); begin += kChunk) {  // bounds the logits
        const std::size_t rows = std::min<std::size_t>(kChunk, tokens.size() - begin);
        const auto part = ops::token_losses(context_, feed_all(tokens.subspan(begin, rows)),
                                            next.subspan(begin, rows));
        out.insert(out.end(), part.begin(), part.end());
      }
    } catch (...) {
      position_ = before;
      throw;
    }
    return out;
  }

  void truncate(std::int64_t position) override {
    if (position < 0 || position > position_) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("truncate: position {} is not in 0 to {}", position, position_));
    }
    position_ = position;
  }

  std::int64_t position() const noexcept override { return position_; }
  std::int64_t capacity() const noexcept override { return capacity_; }
  std::int64_t kv_bytes() const noexcept override { return kv_.size(); }
  std::int64_t activation_bytes() const noexcept override {
    std::int64_t total = gemm_.bytes() + scratch_.size();
    for (const AlignedBuffer* b :
         {&x_, &normed_, &q_, &attended_, &gate_, &up_, &delta_, &cos_, &sin_, &logits_}) {
      total += b->size();
    }
    return total;
  }

 private:
  std::span<const float> run(std::span<const std::int32_t> tokens, bool all);
  void check(std::span<const std::int32_t> tokens) const;
  void check_token(std::int32_t id) const;
  void reserve(std::int64_t rows, std::int64_t logit_rows);
  void embed(std::span<const std::int32_t> tokens);
  void forward(std::span<const std::int32_t> tokens);
  void attention_block(std::size_t index, std::int64_t rows);
  void mlp_block(std::size_t index, std::int64_t rows);
  void head(std::int64_t first_row, std::int64_t rows, float* logits);
  void refuse_nan(std::int64_t rows, std::size_t layer, const char* module) const;

  /// y = x . w^T for several weights.
  void gemm(const Bf16* x, std::int64_t rows, std::int64_t columns,
            std::initializer_list<std::pair<const Weight*, Bf16*>> outputs) {
    ops::GemmTask tasks[3];
    std::size_t count = 0;
    for (const auto& [w, y] : outputs) {
      tasks[count++] = {.w = w, .y = {y, FloatType::kBf16, rows, w->n(), 0}};
    }
    ops::gemm(context_, gemm_,
              {.x = {x, FloatType::kBf16, rows, columns, 0}, .activations = model_.activations()},
              std::span(tasks, count));
  }

  /// Cached keys (which = 0) or values (1) of a layer: [capacity, kv_heads * head_dim].
  Bf16* cache(std::size_t layer, int which) const {
    const std::int64_t size = capacity_ * h_.kv_heads * h_.head_dim;
    return kv_.as<Bf16>() + (2 * static_cast<std::int64_t>(layer) + which) * size;
  }

  const DecoderModel& model_;
  const Context& context_;
  const DecoderConfig h_;
  const std::int64_t capacity_;
  std::int64_t position_ = 0;
  AlignedBuffer kv_;
  AlignedBuffer x_, normed_, delta_;  // [rows, hidden]
  AlignedBuffer q_, attended_;        // [rows, heads * head_dim]
  AlignedBuffer gate_, up_;           // [rows, intermediate]
  AlignedBuffer cos_, sin_;           // [rows, head_dim / 2]
  AlignedBuffer logits_;              // f32 [rows, vocabulary]
  AlignedBuffer scratch_;             // of attention
  ops::GemmWorkspace gemm_;
};

void DecoderSession::check(std::span<const std::int32_t> tokens) const {
  if (tokens.empty()) throw Error(ErrorCode::kInvalidArgument, "feed: no tokens");
  const auto count = static_cast<std::int64_t>(tokens.size());
  if (count > capacity_ - position_) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("feed: {} tokens after {} do not fit into a context of {}", count,
                            position_, capacity_));
  }
  for (const std::int32_t id : tokens) check_token(id);
}

void DecoderSession::check_token(std::int32_t id) const {
  if (id >= 0 && id < h_.vocabulary) return;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("token {} is not in a vocabulary of {}", id, h_.vocabulary));
}

void DecoderSession::reserve(std::int64_t rows, std::int64_t logit_rows) {
  constexpr auto kBytes = static_cast<std::int64_t>(sizeof(Bf16));
  for (AlignedBuffer* b : {&x_, &normed_, &delta_}) b->reserve(rows * h_.hidden * kBytes);
  for (AlignedBuffer* b : {&q_, &attended_}) b->reserve(rows * h_.heads * h_.head_dim * kBytes);
  for (AlignedBuffer* b : {&gate_, &up_}) b->reserve(rows * h_.intermediate * kBytes);
  for (AlignedBuffer* b : {&cos_, &sin_}) b->reserve(rows * h_.head_dim / 2 * kBytes);
  logits_.reserve(logit_rows * h_.vocabulary * static_cast<std::int64_t>(sizeof(float)));
  scratch_.reserve(ops::attention_scratch_bytes(context_, capacity_, h_.head_dim));
}

void DecoderSession::embed(std::span<const std::int32_t> tokens) {
  const auto row_bytes = static_cast<std::size_t>(h_.hidden) * sizeof(Bf16);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    std::memcpy(x_.data() + i * row_bytes,
                model_.weights().embedding + static_cast<std::size_t>(tokens[i]) * row_bytes,
                row_bytes);
  }
}

void DecoderSession::attention_block(std::size_t index, std::int64_t rows) {
  const DecoderLayer& layer = model_.weights().layers[index];
  const std::int64_t kv_size = h_.kv_heads * h_.head_dim;
  Bf16* k = cache(index, 0) + position_ * kv_size;
  Bf16* v = cache(index, 1) + position_ * kv_size;
  auto* x = x_.as<Bf16>();
  auto* normed = normed_.as<Bf16>();
  auto* q = q_.as<Bf16>();
  ops::rms_norm(context_, x, layer.input_norm.data(), rows, h_.hidden, h_.eps, normed);
  gemm(normed, rows, h_.hidden, {{&layer.q, q}, {&layer.k, k}, {&layer.v, v}});
  if (h_.head_norms) {
    ops::rms_norm(context_, q, layer.q_norm.data(), rows * h_.heads, h_.head_dim, h_.eps, q);
    ops::rms_norm(context_, k, layer.k_norm.data(), rows * h_.kv_heads, h_.head_dim, h_.eps, k);
  }
  const auto* cos = cos_.as<Bf16>();
  const auto* sin = sin_.as<Bf16>();
  ops::rope(context_, q, h_.heads * h_.head_dim, rows, h_.heads, h_.head_dim, cos, sin);
  ops::rope(context_, k, kv_size, rows, h_.kv_heads, h_.head_dim, cos, sin);
  ops::Attention a = {};
  a.q = q;
  a.k = cache(index, 0);
  a.v = cache(index, 1);
  a.out = attended_.as<Bf16>();
  a.rows = rows;
  a.first = position_;
  a.heads = h_.heads;
  a.kv_heads = h_.kv_heads;
  a.head_dim = h_.head_dim;
  a.scale = 1.0F / std::sqrt(static_cast<float>(h_.head_dim));
  ops::attention(context_, a, scratch_);
  gemm(attended_.as<Bf16>(), rows, h_.heads * h_.head_dim, {{&layer.o, delta_.as<Bf16>()}});
  ops::add(context_, x, delta_.as<Bf16>(), rows, h_.hidden);
  refuse_nan(rows, index, "self_attn");
}

void DecoderSession::mlp_block(std::size_t index, std::int64_t rows) {
  const DecoderLayer& layer = model_.weights().layers[index];
  auto* x = x_.as<Bf16>();
  auto* normed = normed_.as<Bf16>();
  auto* gate = gate_.as<Bf16>();
  ops::rms_norm(context_, x, layer.attention_norm.data(), rows, h_.hidden, h_.eps, normed);
  gemm(normed, rows, h_.hidden, {{&layer.gate, gate}, {&layer.up, up_.as<Bf16>()}});
  ops::silu_mul(context_, gate, up_.as<Bf16>(), rows, h_.intermediate);
  gemm(gate, rows, h_.intermediate, {{&layer.down, delta_.as<Bf16>()}});
  ops::add(context_, x, delta_.as<Bf16>(), rows, h_.hidden);
  refuse_nan(rows, index, "mlp");
}

void DecoderSession::refuse_nan(std::int64_t rows, std::size_t layer, const char* module) const {
  const std::int64_t row = ops::first_nan_row(x_.as<Bf16>(), rows, h_.hidden);
  if (row < 0) return;
  throw Error(ErrorCode::kBadInput,
              fmt::format("model.layers.{}.{}: values became NaN at position {}", layer, module,
                          position_ + row));
}

void DecoderSession::forward(std::span<const std::int32_t> tokens) {
  const auto rows = static_cast<std::int64_t>(tokens.size());
  embed(tokens);
  ops::rope_table(model_.frequencies(), position_, rows, cos_.as<Bf16>(), sin_.as<Bf16>());
  for (std::size_t i = 0; i < model_.weights().layers.size(); ++i) {
    attention_block(i, rows);
    mlp_block(i, rows);
  }
}

void DecoderSession::head(std::int64_t first_row, std::int64_t rows, float* logits) {
  auto* normed = normed_.as<Bf16>();
  ops::rms_norm(context_, x_.as<Bf16>() + first_row * h_.hidden, model_.weights().norm.data(), rows,
                h_.hidden, h_.eps, normed);
  const ops::GemmTask task = {.w = &model_.weights().head,
                              .y = {logits, FloatType::kF32, rows, h_.vocabulary, 0}};
  ops::gemm(
      context_, gemm_,
      {.x = {normed, FloatType::kBf16, rows, h_.hidden, 0}, .activations = model_.activations()},
      std::span(&task, 1));
  for (std::int64_t i = 0; i < rows * h_.vocabulary; ++i) {
    if (!std::isfinite(logits[i])) {
      throw Error(ErrorCode::kBadInput, "lm_head: logits became NaN or infinite");
    }
  }
}

std::span<const float> DecoderSession::run(std::span<const std::int32_t> tokens, bool all) {
  check(tokens);
  const auto count = static_cast<std::int64_t>(tokens.size());
  const std::int64_t logit_rows = all ? count : 1;
  reserve(std::min(count, kChunk), logit_rows);
  const std::int64_t before = position_;
  auto* logits = logits_.as<float>();
  const auto work = [&] {
    for (std::int64_t begin = 0; begin < count; begin += kChunk) {
      const std::int64_t rows = std::min(kChunk, count - begin);
      forward(tokens.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(rows)));
      if (all) head(0, rows, logits + begin * h_.vocabulary);
      if (!all && begin + rows == count) head(rows - 1, 1, logits);
      position_ += rows;
    }
  };
  try {
    context_.pool().lead(work);
  } catch (...) {
    position_ = before;
    throw;
  }
  return {logits, static_cast<std::size_t>(logit_rows * h_.vocabulary)};
}

std::unique_ptr<Session> DecoderModel::new_session(const Context& context, std::int64_t capacity) {
  if (capacity < 1 || capacity > hyper_.max_positions) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("context: expected 1 to {} tokens, found {}", hyper_.max_positions, capacity));
  }
  return std::make_unique<DecoderSession>(*this, context, capacity);
}

}  // namespace

std::unique_ptr<Model> open_decoder(const std::filesystem::path& folder, const Config& config,
                                    const DecoderConfig& hyper, const ModelOptions& options) {
  return std::make_unique<DecoderModel>(folder, config, hyper, options);
}

}  // namespace deepinfer::models
