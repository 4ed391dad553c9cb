// Writing quantized checkpoints: published bf16, f16 or f32 weights in, block-quantized ones out.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "deepinfer/export.h"
#include "deepinfer/runtime.h"

namespace deepinfer {

/// Weights whose module name ("model.layers.0.self_attn.q_proj") contains a match of `pattern`, a
/// regular expression, get `format`.
struct FormatRule {
  std::string pattern;
  std::string format;
};

struct QuantizeOptions {
  std::string format;             ///< of all weights that no rule matches; see quantize_formats()
  std::vector<FormatRule> rules;  ///< the first match wins; each must match something

  /// Called on the calling thread with bytes of the source that are done, and all of them. What it
  /// throws ends the work: the output is removed, and the exception reaches the caller.
  std::function<void(std::uint64_t done, std::uint64_t total)> progress;
};

/// What became of the tensors that were given one format.
struct FormatTotal {
  std::string format;  ///< "copied": the tensors that are no linear weights
  std::int64_t tensors = 0;
  std::uint64_t source_bytes = 0;
  std::uint64_t output_bytes = 0;  ///< codes and scales
};

struct QuantizeReport {
  std::vector<FormatTotal> formats;  ///< sorted by name
  std::uint64_t source_bytes = 0;    ///< all tensors
  std::uint64_t output_bytes = 0;    ///< all safetensors files written
  std::vector<std::string> files;    ///< names of the safetensors files written
  bool replaced_unfinished = false;  ///< files that an interrupted run had left were removed
};

/// "bf16", "fp8-32x32", "fp8-128x128", "mxfp8", "mxfp4".
DEEPINFER_API std::vector<std::string_view> quantize_formats();

/// Reads the checkpoint at `in` (a safetensors file or a folder), quantizes its linear weights and
/// writes a folder `out` that other engines load too: fp8 alone in the layout of transformers, all
/// else as compressed-tensors. Embedding, head, norms and routers are copied byte for byte, and so
/// are tokenizer, configuration (which gets its `quantization_config`) and licence.
///
/// The scale of a block is the smallest power of two with amax <= limit * scale, limit 448 or 6;
/// codes are the nearest, ties to even. The bytes do not depend on the number of threads. `out`
/// appears only when it is complete: until then the files are in `out`.partial-deepinfer, and what
/// a killed run left there is replaced by the next one. Memory use does not grow with the
/// checkpoint.
///
/// Throws Error: kInvalidArgument for an unknown format, a rule that matches nothing, or an `out`
/// that exists and is not empty, cannot be replaced, or is being written by another run (found
/// before the source is opened); kBadInput for a damaged source and for a NaN or infinite weight,
/// with tensor, row and column; kUnsupported for a source that is quantized already; kIo when the
/// output cannot be written.
DEEPINFER_API QuantizeReport quantize(const Context& context, const std::filesystem::path& in,
                                      const std::filesystem::path& out,
                                      const QuantizeOptions& options);

}  // namespace deepinfer
