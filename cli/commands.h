// The commands of `deepinfer`: one file each, listed in main.cc.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace deepinfer::cli {

/// Exit codes, the same for every command.
constexpr int kOk = 0;
constexpr int kFailed = 1;       // a check failed, or output could not be written
constexpr int kUsage = 2;        // the command line
constexpr int kBadInput = 3;     // a file
constexpr int kUnsupported = 4;  // this build, CPU or version cannot do it
constexpr int kNoMemory = 5;
constexpr int kInterrupted = 130;  // Ctrl-C

/// What the chosen sub-command does; returns the exit code. Results go to stdout, notes and
/// progress to stderr. Errors are thrown and reported by main.cc.
struct Command {
  std::function<int()> run;
};

/// Each adds its sub-command, whose callback sets command.run.
void add_bench(CLI::App& app, Command& command);
void add_info(CLI::App& app, Command& command);
void add_inspect(CLI::App& app, Command& command);
void add_quantize(CLI::App& app, Command& command);
void add_run(CLI::App& app, Command& command);
void add_perplexity(CLI::App& app, Command& command);
void add_verify(CLI::App& app, Command& command);

}  // namespace deepinfer::cli
