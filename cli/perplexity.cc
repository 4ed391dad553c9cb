// deepinfer perplexity: how well a model predicts a text.
//
// No begin-of-text token. The text is cut into windows of `context` predictions; each window starts
// with the last token of the one before, so every token but the very first is predicted once.
#include <fmt/core.h>

#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>

#include "commands.h"
#include "deepinfer/error.h"
#include "deepinfer/version.h"
#include "interrupt.h"
#include "model_options.h"
#include "note.h"
#include "progress.h"
#include "read.h"

namespace deepinfer::cli {
namespace {

struct PerplexityOptions {
  ModelOptions model;
  std::string file;
  std::int64_t context = 1024;
  std::int64_t tokens = 0;
  bool json = false;
};

std::string read_text(const std::string& file) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> stream(std::fopen(file.c_str(), "rb"),
                                                               std::fclose);
  if (!stream) {
    throw Error(ErrorCode::kBadInput, fmt::format("{}: {}", file, std::strerror(errno)));
  }
  std::string text = read_stream(file, stream.get());
  if (text.empty()) throw Error(ErrorCode::kBadInput, file + ": is empty");
  if (const auto at = first_invalid_utf8(text)) {
    throw Error(ErrorCode::kBadInput,
                fmt::format("{}: byte {}: expected UTF-8, found 0x{:02x}", file, *at,
                            static_cast<unsigned char>(text[*at])));
  }
  return text;
}

int run(const PerplexityOptions& o) {
  const Context context = o.model.context();
  const std::unique_ptr<Model> model = o.model.open_model();
  const Tokenizer tokenizer = o.model.open_tokenizer();
  const std::vector<std::int32_t> ids = tokenizer.encode(read_text(o.file), false);
  auto wanted = static_cast<std::int64_t>(ids.size()) - 1;
  if (wanted < 1) throw Error(ErrorCode::kBadInput, o.file + ": has fewer than two tokens");
  if (o.tokens > 0) wanted = std::min(wanted, o.tokens);

  const auto session = model->new_session(context, o.context);
  Progress progress("perplexity", wanted);
  const Interrupts interrupts;
  const auto start = std::chrono::steady_clock::now();
  double total = 0.0;
  for (std::int64_t done = 0; done < wanted;) {
    const auto count = static_cast<std::size_t>(std::min(o.context, wanted - done));
    const std::span<const std::int32_t> window =
        std::span(ids).subspan(static_cast<std::size_t>(done), count + 1);
    session->truncate(0);
    for (const double loss : session->losses(window.first(count), window.last(count)))
      total += loss;
    done += static_cast<std::int64_t>(count);
    progress.update(done);
    if (Interrupts::seen()) {
      progress.finish();
      note("deepinfer: interrupted after {} of {} predictions\n", done, wanted);
      return kInterrupted;
    }
  }
  progress.finish();
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const double mean = total / static_cast<double>(wanted);
  const double perplexity = std::exp(mean);
  if (o.json) {
    const nlohmann::json json = {{"schema", 1},
                                 {"contract", kNumericContract},
                                 {"perplexity", perplexity},
                                 {"mean_loss", mean},
                                 {"predictions", wanted},
                                 {"context", o.context},
                                 {"activations", o.model.activations},
                                 {"isa", isa_name(context.isa())},
                                 {"threads", context.num_threads()},
                                 {"tokens_per_second", static_cast<double>(wanted) / seconds}};
    fmt::print("{}\n", json.dump(2));
  } else {
    fmt::print("perplexity {:.4f} over {} predictions, context {} ({:.0f} tokens/s)\n", perplexity,
               wanted, o.context, static_cast<double>(wanted) / seconds);
  }
  return kOk;
}

}  // namespace

void add_perplexity(CLI::App& app, Command& command) {
  CLI::App* sub = app.add_subcommand("perplexity", "How well a model predicts a text file");
  auto o = std::make_shared<PerplexityOptions>();
  o->model.add_to(*sub);
  sub->add_option("--file", o->file, "Text file, UTF-8")->required();
  sub->add_option("--context", o->context, "Predictions per window")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 30))
      ->capture_default_str();
  sub->add_option("--tokens", o->tokens, "Predictions in all; 0: the whole file")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  sub->add_flag("--json", o->json, "Print one JSON object");
  sub->callback([&command, o] { command.run = [o] { return run(*o); }; });
}

}  // namespace deepinfer::cli
