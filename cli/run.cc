// deepinfer run: a prompt in, text out.
#include <fmt/core.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "commands.h"
#include "deepinfer/error.h"
#include "deepinfer/version.h"
#include "interrupt.h"
#include "memory.h"
#include "model_options.h"
#include "note.h"
#include "progress.h"
#include "read.h"

namespace deepinfer::cli {
namespace {

struct RunOptions {
  ModelOptions model;
  std::string prompt;
  std::string system;
  bool chat = false;
  std::string chat_template;  // a name; empty: the checkpoint's own
  bool raw = false;
  bool json = false;
  bool digest = false;
  std::string logits;  // file to write
  std::int64_t max_tokens = 256;
  SamplingOptions sampling;
};

/// FNV-1a over the bits of all logits: equal on two machines exactly when all bits are (but for
/// collisions).
class LogitsDigest {
 public:
  void add(std::span<const float> logits) {
    for (const float value : logits) {
      std::uint32_t bits = 0;
      std::memcpy(&bits, &value, sizeof(bits));
      for (int shift = 0; shift < 32; shift += 8) {
        hash_ = (hash_ ^ ((bits >> shift) & 0xFFU)) * 0x100000001B3ULL;
      }
    }
  }
  std::string text() const { return fmt::format("{:016x}", hash_); }

 private:
  std::uint64_t hash_ = 0xCBF29CE484222325ULL;
};

/// Logits as f32, little-endian, [steps, vocabulary]; nothing when no file was asked for.
class LogitsFile {
 public:
  explicit LogitsFile(const std::string& path) : path_(path) {
    if (path.empty()) return;
    // Never over an existing file: it could be the model.
    if (std::filesystem::exists(path)) {
      throw Error(ErrorCode::kInvalidArgument, fmt::format("--logits: {}: already exists", path));
    }
    file_.open(path, std::ios::binary);
    check();
  }
  void add(std::span<const float> logits) {
    if (path_.empty()) return;
    file_.write(reinterpret_cast<const char*>(logits.data()),
                static_cast<std::streamsize>(logits.size_bytes()));
    check();
  }
  void finish() {
    file_.flush();
    if (!path_.empty()) check();
  }

 private:
  void check() const {
    if (!file_) {
      throw Error(ErrorCode::kIo, fmt::format("{}: {}", path_, std::strerror(errno)));
    }
  }
  std::string path_;
  std::ofstream file_;
};

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

struct Outcome {
  std::vector<std::int32_t> prompt_ids;
  std::vector<std::int32_t> ids;
  std::string text;
  std::string stop;  // "end of text", "max tokens", "context", "interrupted"
  double prompt_seconds = 0;
  double decode_seconds = 0;
  std::int64_t decode_steps = 0;
  LogitsDigest digest;
};

std::vector<std::string> known_templates() {
  const auto names = ChatTemplate::known();
  return {names.begin(), names.end()};
}

ChatTemplate open_template(const RunOptions& o) {
  if (!o.chat_template.empty()) return ChatTemplate::from_name(o.chat_template);
  try {
    return ChatTemplate::from_directory(o.model.path);
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("{} (--raw takes the prompt as it is, --chat-template "
                                          "names another template)",
                                          error.what()));
  }
}

std::vector<std::int32_t> encode_prompt(const RunOptions& o, const Tokenizer& tokenizer) {
  std::string text = o.prompt;
  if (text == "-") text = read_stream("--prompt -", stdin);
  if (text.empty()) throw Error(ErrorCode::kInvalidArgument, "--prompt: is empty");
  if (const auto at = first_invalid_utf8(text)) {
    throw Error(ErrorCode::kInvalidArgument, fmt::format("--prompt: byte {} is not UTF-8", *at));
  }
  if (o.raw) return tokenizer.encode(text, true);
  const ChatTemplate chat = open_template(o);
  std::vector<ChatMessage> messages;
  if (!o.system.empty()) messages.push_back({"system", o.system});
  messages.push_back({"user", text});
  return tokenizer.encode(chat.apply(messages), true);
}

/// Feeds the prompt in parts (which changes no bit), so that Ctrl-C is heard between them and a
/// long prompt shows its progress.
std::span<const float> feed_prompt(Session& session, std::span<const std::int32_t> ids) {
  constexpr std::size_t kPart = 128;
  Progress progress("prompt", static_cast<std::int64_t>(ids.size()));
  std::span<const float> logits;
  for (std::size_t begin = 0; begin < ids.size() && !Interrupts::seen(); begin += kPart) {
    const std::size_t count = std::min(kPart, ids.size() - begin);
    logits = session.feed(ids.subspan(begin, count));
    if (ids.size() > kPart) progress.update(static_cast<std::int64_t>(begin + count));
  }
  return logits;
}

/// What a generated id prints. Models have more rows than their tokenizer has tokens where rows are
/// padded (Qwen): such an id stands for nothing, as in transformers.
std::string_view printed(const Tokenizer& tokenizer, std::int32_t id) {
  return id < tokenizer.vocabulary_size() ? tokenizer.token_bytes(id) : std::string_view();
}

/// Feeds the prompt, then token after token; `emit` gets whole characters.
void generate(const RunOptions& o, const Model& model, Session& session, const Tokenizer& tokenizer,
              const std::function<void(const std::string&)>& emit, LogitsFile& file, Outcome& out) {
  Sampler sampler(o.sampling);
  Utf8Stream characters;
  const auto write = [&](const std::string& piece) {
    out.text += piece;
    emit(piece);
  };
  const auto& end_ids = model.info().end_ids;
  auto start = std::chrono::steady_clock::now();
  std::span<const float> logits = feed_prompt(session, out.prompt_ids);
  out.prompt_seconds = seconds_since(start);
  if (Interrupts::seen()) {
    out.stop = "interrupted";
    return;
  }
  start = std::chrono::steady_clock::now();
  while (true) {
    if (o.digest) out.digest.add(logits);
    file.add(logits);
    const std::int32_t id = sampler.sample(logits);
    if (std::find(end_ids.begin(), end_ids.end(), id) != end_ids.end()) {
      out.stop = "end of text";
      break;
    }
    out.ids.push_back(id);
    write(characters.push(printed(tokenizer, id)));
    if (Interrupts::seen()) {
      out.stop = "interrupted";
    } else if (static_cast<std::int64_t>(out.ids.size()) == o.max_tokens) {
      out.stop = "max tokens";
    } else if (session.position() == session.capacity()) {
      out.stop = "context";
    }
    if (!out.stop.empty()) break;
    logits = session.feed(std::span(&id, 1));
    ++out.decode_steps;
  }
  out.decode_seconds = seconds_since(start);
  write(characters.finish());
  file.finish();
}

double per_second(std::int64_t count, double seconds) {
  return seconds > 0 ? static_cast<double>(count) / seconds : 0.0;
}

nlohmann::json to_json(const Outcome& out, const Model& model, const Session& session,
                       const Tokenizer& tokenizer, const Context& context, bool digest) {
  const ModelInfo& info = model.info();
  const double decode_rate = per_second(out.decode_steps, out.decode_seconds);
  nlohmann::json json = {
      {"schema", 1},
      {"contract", kNumericContract},
      {"text", out.text},
      {"prompt_ids", out.prompt_ids},
      {"ids", out.ids},
      {"stop", out.stop},
      {"isa", isa_name(context.isa())},
      {"threads", context.num_threads()},
      {"prompt_tokens_per_second",
       per_second(static_cast<std::int64_t>(out.prompt_ids.size()), out.prompt_seconds)},
      {"decode_tokens_per_second", decode_rate},
      {"weight_bytes_per_token", info.decode_weight_bytes},
      {"decode_gbps", decode_rate * static_cast<double>(info.decode_weight_bytes) * 1e-9},
      {"memory",
       {{"private_bytes", private_memory_bytes()},
        {"kv_bytes", session.kv_bytes()},
        {"activation_bytes", session.activation_bytes()},
        {"tokenizer_bytes", tokenizer.memory_bytes()},
        {"private_weight_bytes", info.private_weight_bytes},
        {"checkpoint_bytes", info.checkpoint_bytes}}},
  };
  if (digest) json["logits_digest"] = out.digest.text();
  return json;
}

void print_summary(const Outcome& out, const Model& model, const Context& context, bool digest) {
  const double bytes = static_cast<double>(model.info().decode_weight_bytes);
  const double rate = per_second(out.decode_steps, out.decode_seconds);
  note("\n[{} prompt tokens, {:.1f}/s; {} generated, {:.1f}/s; stopped: {}]\n",
       out.prompt_ids.size(),
       per_second(static_cast<std::int64_t>(out.prompt_ids.size()), out.prompt_seconds),
       out.ids.size(), rate, out.stop);
  note("[{:.1f} MB of weights per token, {:.2f} GB/s; {} threads, {}]\n", bytes * 1e-6,
       rate * bytes * 1e-9, context.num_threads(), isa_name(context.isa()));
  if (digest) note("[logits digest {}]\n", out.digest.text());
}

/// Digits only, and below 2^64: the parser would take the nearest number for a larger one.
std::string check_seed(const std::string& text) {
  std::uint64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && stop == end ? "" : "expected a whole number from 0 to 2^64 - 1";
}

int run(RunOptions o) {
  if (o.chat && o.raw)
    throw Error(ErrorCode::kInvalidArgument, "--chat and --raw exclude each other");
  if (o.raw && !o.system.empty()) {
    throw Error(ErrorCode::kInvalidArgument, "--raw and --system exclude each other");
  }
  if (o.raw && !o.chat_template.empty()) {
    throw Error(ErrorCode::kInvalidArgument, "--raw and --chat-template exclude each other");
  }
  const Sampler check_sampling(o.sampling);  // before anything is loaded
  const Context context = o.model.context();
  const std::unique_ptr<Model> model = o.model.open_model();
  const Tokenizer tokenizer = o.model.open_tokenizer();
  Outcome out;
  out.prompt_ids = encode_prompt(o, tokenizer);
  if (out.prompt_ids.empty()) throw Error(ErrorCode::kInvalidArgument, "the prompt has no tokens");
  release_free_memory();

  const auto prompt_size = static_cast<std::int64_t>(out.prompt_ids.size());
  const std::int64_t longest = model->info().max_positions;
  if (prompt_size > longest) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("the prompt has {} tokens, the model takes {}", prompt_size, longest));
  }
  const auto session = model->new_session(context, std::min(longest, prompt_size + o.max_tokens));
  LogitsFile logits(o.logits);
  const Interrupts interrupts;
  generate(
      o, *model, *session, tokenizer,
      [&](const std::string& piece) {
        if (o.json) return;
        fmt::print("{}", piece);
        std::fflush(stdout);
      },
      logits, out);
  if (o.json) {
    fmt::print("{}\n", to_json(out, *model, *session, tokenizer, context, o.digest).dump(2));
  } else {
    fmt::print("\n");
    std::fflush(stdout);
    print_summary(out, *model, context, o.digest);
  }
  return out.stop == "interrupted" ? kInterrupted : kOk;
}

}  // namespace

void add_run(CLI::App& app, Command& command) {
  CLI::App* sub = app.add_subcommand("run", "Generate text from a prompt");
  auto o = std::make_shared<RunOptions>();
  o->model.add_to(*sub);
  sub->add_option("--prompt", o->prompt, "The prompt; - reads standard input")->required();
  sub->add_option("--system", o->system, "System message for the chat template");
  sub->add_flag("--chat", o->chat, "Put the prompt into the model's chat template (the default)");
  sub->add_option("--chat-template", o->chat_template,
                  "A known template instead of the model's own, where that is not known")
      ->check(CLI::IsMember(known_templates()));
  sub->add_flag("--raw", o->raw, "Use the prompt as it is");
  sub->add_option("--max-tokens", o->max_tokens, "Stop after this many tokens")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 30))
      ->capture_default_str();
  sub->add_option("--temperature", o->sampling.temperature, "0 takes the likeliest token")
      ->capture_default_str();
  const std::vector<CLI::Option*> sampling = {
      sub->add_option("--top-k", o->sampling.top_k, "Sample from the k likeliest tokens; 0: all"),
      sub->add_option("--top-p", o->sampling.top_p,
                      "Sample from the likeliest tokens with this share"),
      sub->add_option("--seed", o->sampling.seed, "Seed of the sampling")->check(check_seed)};
  for (CLI::Option* option : sampling) option->capture_default_str();
  sub->add_flag("--logits-digest", o->digest,
                "Print a digest of all logits: equal digests, equal bits");
  sub->add_option("--logits", o->logits,
                  "Write the logits of every step to this file: f32 [steps, vocabulary]");
  sub->add_flag("--json", o->json, "Print one JSON object instead of text");
  sub->callback([&command, o, sampling] {
    for (const CLI::Option* option : sampling) {
      if (option->count() == 0 || o->sampling.temperature != 0.0F) continue;
      throw CLI::ValidationError(
          option->get_name(), "has no effect on the likeliest token: needs --temperature above 0");
    }
    command.run = [o] { return run(*o); };
  });
}

}  // namespace deepinfer::cli
