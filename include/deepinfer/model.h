// Language models: a checkpoint folder in, logits out.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "deepinfer/export.h"
#include "deepinfer/linear.h"
#include "deepinfer/runtime.h"

namespace deepinfer {

struct ModelOptions {
  /// What happens in front of every linear layer whose weights are fp8 or fp4.
  Activations activations = Activations::kQuantize224;
};

/// What config.json says, as far as callers need it.
struct ModelInfo {
  std::string model_type;  ///< as in config.json: "llama", "qwen3"
  std::int64_t num_layers = 0;
  std::int64_t hidden_size = 0;
  std::int64_t vocabulary_size = 0;
  std::int64_t max_positions = 0;         ///< longest sequence the model was made for
  std::vector<std::int32_t> end_ids;      ///< tokens that end a text
  std::uint64_t checkpoint_bytes = 0;     ///< all files
  std::int64_t decode_weight_bytes = 0;   ///< codes and scales read for one token
  std::int64_t private_weight_bytes = 0;  ///< copies beside the mapped files (f32 scales)
  std::int64_t kv_bytes_per_position = 0;
};

class Model;

/// One sequence: the KV cache and the buffers of the forward pass. Not for use by several threads
/// at once. The Model and the Context must outlive it.
class DEEPINFER_API Session {
 public:
  virtual ~Session() = default;

  /// Appends tokens and returns the logits [vocabulary] after the last one, valid until the next
  /// call. Feeding tokens one by one, all at once or in any split gives the same bits.
  ///
  /// Throws Error(kInvalidArgument) when a token is out of range, when there are none, or when they
  /// do not fit (the session is unchanged); Error(kBadInput) naming the layer when values become
  /// NaN.
  virtual std::span<const float> feed(std::span<const std::int32_t> tokens) = 0;

  /// As feed(), but returns the logits after every token: [tokens, vocabulary].
  virtual std::span<const float> feed_all(std::span<const std::int32_t> tokens) = 0;

  /// -ln of the probability that each token of `next` follows: feeds `tokens` and compares the
  /// distribution after tokens[i] with next[i]. Sizes are equal.
  virtual std::vector<double> losses(std::span<const std::int32_t> tokens,
                                     std::span<const std::int32_t> next) = 0;

  /// Forgets everything after the first `position` tokens.
  virtual void truncate(std::int64_t position) = 0;

  virtual std::int64_t position() const noexcept = 0;
  virtual std::int64_t capacity() const noexcept = 0;
  virtual std::int64_t kv_bytes() const noexcept = 0;          ///< of the KV cache
  virtual std::int64_t activation_bytes() const noexcept = 0;  ///< of all other buffers
};

/// An opened model. Weights stay in the mapped files.
class DEEPINFER_API Model {
 public:
  virtual ~Model() = default;

  /// Opens a checkpoint folder (config.json and safetensors) of a known family.
  ///
  /// Throws Error(kBadInput) for missing, damaged or contradictory files, Error(kUnsupported) for a
  /// model type or option that is not implemented; both name what was found.
  static std::unique_ptr<Model> open(const std::filesystem::path& folder,
                                     const ModelOptions& options = {});

  /// Names of the families, as `model_type` in config.json.
  static std::vector<std::string_view> families();

  virtual const ModelInfo& info() const noexcept = 0;

  /// A new, empty sequence of at most `capacity` tokens.
  virtual std::unique_ptr<Session> new_session(const Context& context, std::int64_t capacity) = 0;
};

}  // namespace deepinfer
