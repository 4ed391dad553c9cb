// deepinfer: runs, inspects and writes block-quantized checkpoints.
#include <fmt/core.h>

#include <cstdio>
#include <new>

#include "commands.h"
#include "deepinfer/error.h"
#include "deepinfer/version.h"

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

int report(int code, const std::string& message) {
  fmt::print(stderr, "deepinfer: {}\n", message);
  return code;
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
  add_quantize(app, command);
  add_run(app, command);
  add_perplexity(app, command);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kOk : kUsage;  // CLI11 prints help or what is wrong
  }
  return run(command);
}
