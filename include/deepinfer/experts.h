// Mixture of experts: choosing experts for tokens, and computing them.
#pragma once

#include <cstdint>
#include <limits>
#include <span>

#include "deepinfer/export.h"
#include "deepinfer/linear.h"
#include "deepinfer/prepared_weight.h"

namespace deepinfer {

/// What a router's logits become before experts are ranked.
enum class RouterScore : std::uint8_t {
  kSoftmax,        ///< over all experts (Qwen3-MoE)
  kSigmoid,        ///< DeepSeek-V3
  kSqrtSoftplus,   ///< sqrt(ln(1 + e^x)), DeepSeek-V4
  kSoftmaxOfTopK,  ///< ranked by logits, softmax over the chosen (gpt-oss)
};

struct RoutingRules {
  RouterScore score = RouterScore::kSoftmax;
  std::int64_t top_k = 1;       ///< experts of a token
  std::int64_t groups = 1;      ///< experts form so many equal groups of neighbours
  std::int64_t top_groups = 1;  ///< only the best of them are ranked, by the sum of their best two
  bool normalize = true;        ///< weights are divided by their sum + 1e-20
  float scale = 1.0F;           ///< multiplies weights last
  bool round_to_bf16 = false;   ///< weights are rounded to bf16 at the end (Qwen3-MoE)
};

/// The top_k experts of every token, best first (ties: the lower index), and their weights, all in
/// f32. `bias` [num_experts] or null is added to scores for the ranking only. A NaN ranks last and
/// makes the weights of its token NaN where they are normalized.
///
/// logits [tokens, num_experts], ids and weights [tokens, top_k]. Throws Error(kInvalidArgument)
/// naming the argument: top_k above the experts that may be chosen, groups that do not divide them.
DEEPINFER_API void route(const Context& context, const float* logits, std::int64_t tokens,
                         std::int64_t num_experts, const RoutingRules& rules, const float* bias,
                         std::int32_t* ids, float* weights);

/// Hash-routed layers: the experts of a token are row token_ids[t] of `table` [vocabulary, top_k],
/// their weights those of route().
DEEPINFER_API void route_hashed(const Context& context, const float* logits, std::int64_t tokens,
                                std::int64_t num_experts, const RoutingRules& rules,
                                std::span<const std::int32_t> table,
                                std::span<const std::int32_t> token_ids, std::int32_t* ids,
                                float* weights);

/// How gate and up become h.
enum class ExpertActivation : std::uint8_t {
  kSilu,         ///< h = bf16(silu(gate) * up * weight), in f32 before (DeepSeek-V4)
  kSiluRounded,  ///< h = bf16(bf16(silu(gate)) * up) (Qwen3-MoE)
  kGptOss,  ///< h = bf16(bf16(up + 1) * bf16(gate * sigmoid(1.702 gate))), rounded as torch does
};

/// Where a token's routing weight multiplies.
enum class RoutingWeight : std::uint8_t {
  kBeforeDown,  ///< h (DeepSeek-V4)
  kAfterDown,   ///< the expert's output, which is rounded to bf16 again
};

struct ExpertRules {
  ExpertActivation activation = ExpertActivation::kSilu;
  RoutingWeight weight = RoutingWeight::kBeforeDown;
  /// gate = min(gate, limit), up = clamp(up, -limit, limit); NaN passes through.
  float limit = std::numeric_limits<float>::infinity();
  /// Each addition of an expert is rounded to bf16 (as torch's index_add_ does), not only the sum.
  bool round_each_add = false;
  Activations activations = Activations::kQuantize224;  ///< in front of fp8 and fp4 weights
};

/// The weights of a layer's experts; e experts, `hidden` features in and out, `width` inside.
struct ExpertWeights {
  const PreparedWeight* gate = nullptr;  ///< w1 [e, width, hidden]
  const PreparedWeight* up = nullptr;    ///< w3 [e, width, hidden]; null: `gate` is [e, 2 width,
                                         ///< hidden] with rows gate, up, gate, up, ... (gpt-oss)
  const PreparedWeight* down = nullptr;  ///< w2 [e, hidden, width]
  const float* gate_bias = nullptr;      ///< [e, rows of gate] or null
  const float* up_bias = nullptr;        ///< [e, width] or null
  const float* down_bias = nullptr;      ///< [e, hidden] or null

  /// An expert for every token, without a routing weight, added last: gate, up [width', hidden],
  /// down [hidden, width'], or all null.
  const Weight* shared_gate = nullptr;
  const Weight* shared_up = nullptr;
  const Weight* shared_down = nullptr;
};

/// y[t] = sum over the experts of token t, in ascending expert index (the same expert twice: in
/// slot order), in f32, then the shared expert, then one rounding to y's type.
///
/// x [tokens, hidden]; ids and weights [tokens, top_k]; an id of -1 is no expert. The bits of a
/// token depend on its own row, ids and weights alone: not on the batch, the order of tokens or of
/// distinct ids, threads or instruction set. Cost grows with the tokens and the experts used.
/// Throws Error(kInvalidArgument) naming the argument before anything is written.
DEEPINFER_API void experts(const Context& context, const MatrixView& x,
                           std::span<const std::int32_t> ids, std::span<const float> weights,
                           const ExpertWeights& w, const ExpertRules& rules,
                           const MutableMatrixView& y);

}  // namespace deepinfer
