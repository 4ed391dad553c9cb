// deepinfer info: what this build and this machine can do.
#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "commands.h"
#include "deepinfer/runtime.h"

namespace deepinfer::cli {
namespace {

nlohmann::json to_json(const SystemInfo& info, const Context& context) {
  nlohmann::json isas = nlohmann::json::array();
  for (const IsaInfo& isa : info.isas) {
    isas.push_back({{"name", isa.name},
                    {"usable", isa.usable},
                    {"reason", isa.reason},
                    {"kernels", isa.kernels}});
  }
  nlohmann::json caches = nlohmann::json::array();
  for (const CacheInfo& cache : info.caches) {
    caches.push_back({{"level", cache.level}, {"type", cache.type}, {"bytes", cache.bytes}});
  }
  return {{"schema", 1},
          {"version", info.version},
          {"contract", info.numeric_contract},
          {"cpu", info.cpu},
          {"cpus_allowed", info.cpus_allowed},
          {"threads", context.num_threads()},
          {"threads_reason", context.threads_reason()},
          {"isa", isa_name(context.isa())},
          {"isa_reason", context.isa_reason()},
          {"isas", isas},
          {"caches", caches}};
}

void print(const SystemInfo& info, const Context& context) {
  fmt::print("version      {}\n", info.version);
  fmt::print("contract     {} (numeric contract, docs/determinism.md)\n", info.numeric_contract);
  fmt::print("cpu          {}\n", info.cpu);
  fmt::print("threads      {} ({})\n", context.num_threads(), context.threads_reason());
  fmt::print("isa          {} ({})\n", isa_name(context.isa()), context.isa_reason());
  for (const IsaInfo& isa : info.isas) {
    fmt::print("  {:<10} {}\n", isa.name,
               isa.usable ? fmt::format("usable, {} kernels", isa.kernels.size())
                          : "not here: " + isa.reason);
  }
  std::string caches;
  for (const CacheInfo& cache : info.caches) {
    if (cache.type == "Instruction") continue;
    caches +=
        fmt::format("{}L{} {} KiB", caches.empty() ? "" : ", ", cache.level, cache.bytes / 1024);
  }
  fmt::print("caches       {}\n", caches.empty() ? "unknown" : caches);
}

}  // namespace

void add_info(CLI::App& app, Command& command) {
  CLI::App* sub = app.add_subcommand("info", "Version, numeric contract, CPU, kernels, threads");
  auto json = std::make_shared<bool>(false);
  sub->add_flag("--json", *json, "Print one JSON object");
  sub->callback([&command, json] {
    command.run = [json] {
      const Context context;
      const SystemInfo info = system_info();
      if (*json) {
        fmt::print("{}\n", to_json(info, context).dump(2));
      } else {
        print(info, context);
      }
      return kOk;
    };
  });
}

}  // namespace deepinfer::cli
