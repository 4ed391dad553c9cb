// deepinfer: runs, inspects and writes block-quantized checkpoints.
#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <new>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "bus_error.h"
#include "commands.h"
#include "deepinfer/error.h"
#include "deepinfer/version.h"
#include "note.h"

namespace {

using namespace deepinfer::cli;

int exit_code(deepinfer::ErrorCode code) {
  switch (code) {
    case deepinfer::ErrorCode::kInvalidArgument:
      return kUsage;
    case deepinfer::ErrorCode::kBadInput:
      return kBadInput;
    case deepinfer::ErrorCode::kUnsupported:
      return kUnsupported;
    case deepinfer::ErrorCode::kOutOfMemory:
      return kNoMemory;
    case deepinfer::ErrorCode::kIo:
      return kFailed;
  }
  return kFailed;
}

int report(int code, const std::string& message) noexcept {
  note("deepinfer: {}\n", message);
  return code;
}

/// Letters to add, drop or change to get from one word to the other.
std::size_t distance(const std::string& a, const std::string& b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t changed = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({changed, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

std::string suggestion(const std::string& word, const std::vector<std::string>& known) {
  const auto nearer = [&](const std::string& a, const std::string& b) {
    return distance(word, a) < distance(word, b);
  };
  const auto best = std::min_element(known.begin(), known.end(), nearer);
  const bool close = best != known.end() && distance(word, *best) <= 1 + word.size() / 3;
  return close ? fmt::format("; did you mean {}?", *best) : "";
}

/// A message for the first word that is no sub-command or option, before the parser complains that
/// the right one is missing. Empty when all are known.
std::string unknown_word(const CLI::App& app, const std::vector<std::string>& words) {
  const CLI::App* level = &app;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    const auto subs = level->get_subcommands([](const CLI::App*) { return true; });
    if (word == "--") return "";
    std::vector<std::string> known;
    if (word.starts_with("--")) {
      const std::string name = word.substr(0, word.find('='));
      for (const CLI::Option* o : level->get_options()) known.push_back(o->get_name());
      const CLI::Option* option = level->get_option_no_throw(name);
      if (option == nullptr) {
        return fmt::format("{} has no option {}{}", level->get_name(), name,
                           suggestion(name, known));
      }
      if (option->get_items_expected_max() > 0 && name.size() == word.size()) ++i;  // its value
    } else if (!subs.empty() && !word.starts_with("-")) {
      const CLI::App* next = nullptr;
      for (const CLI::App* sub : subs) {
        known.push_back(sub->get_name());
        if (sub->get_name() == word) next = sub;
      }
      if (next == nullptr) {
        return fmt::format("\"{}\" is not a sub-command ({}){}", word, fmt::join(known, ", "),
                           suggestion(word, known));
      }
      level = next;
    }
  }
  return "";
}

int run(const Command& command) {
  try {
    const int code = command.run();
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
      return report(kFailed, "standard output could not be written");
    }
    return code;
  } catch (const deepinfer::Error& error) {
    return report(exit_code(error.code()), error.what());
  } catch (const std::bad_alloc&) {
    return report(kNoMemory, "out of memory");
  } catch (const std::exception& error) {
    return report(kFailed, error.what());
  }
}

}  // namespace

int main(int argc, char** argv) {
  report_bus_errors();
  // With the signal ignored, a limit on the size of files is an error like a full disk.
  std::signal(SIGXFSZ, SIG_IGN);
  CLI::App app{"Runs block-quantized LLM weights exactly as published, on CPUs.", "deepinfer"};
  app.set_version_flag("--version", deepinfer::kVersion);
  app.require_subcommand(1);
  app.footer(
      "Exit codes: 0 ok, 1 a check failed or output could not be written, 2 usage, 3 bad input "
      "file,\n"
      "4 not supported here, 5 out of memory, 130 interrupted.\n"
      "Environment: DEEPINFER_ISA=ref|avx2|avx512bf16, DEEPINFER_THREADS=N.");
  Command command;
  add_info(app, command);
  add_bench(app, command);
  add_inspect(app, command);
  add_verify(app, command);
  add_quantize(app, command);
  add_run(app, command);
  add_perplexity(app, command);
  if (const std::string wrong = unknown_word(app, std::vector<std::string>(argv + 1, argv + argc));
      !wrong.empty()) {
    return report(kUsage, wrong);
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kOk : kUsage;  // CLI11 prints help or what is wrong
  }
  return run(command);
}
