// deepinfer bench gemm: rates of linear() beside the two roofs of the machine, all measured in one
// run with the same pinned threads. Weights lie in a mapped file, in enough copies to exceed the
// last-level cache, as a model's layers do.
#include <fcntl.h>
#include <fmt/core.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "commands.h"
#include "deepinfer/error.h"
#include "deepinfer/linear.h"
#include "deepinfer/roofline.h"
#include "deepinfer/version.h"
#include "model_options.h"

namespace deepinfer::cli {
namespace {

struct BenchFormat {
  const char* name;
  Element element;
  ScaleType scale;
  std::int64_t block_n;
  std::int64_t block_k;
};

constexpr BenchFormat kFormats[] = {
    {"bf16", Element::kBf16, ScaleType::kNone, 1, 32},
    {"fp8-32x32", Element::kE4m3fn, ScaleType::kE8m0, 32, 32},
    {"fp8-128x128", Element::kE4m3fn, ScaleType::kE8m0, 128, 128},
    {"mxfp8", Element::kE4m3fn, ScaleType::kE8m0, 1, 32},
    {"mxfp4", Element::kE2m1, ScaleType::kE8m0, 1, 32},
};

struct Shape {
  std::int64_t n;
  std::int64_t k;
};

struct ShapeSet {
  const char* name;
  std::vector<Shape> shapes;
};

const std::vector<ShapeSet>& shape_sets() {
  static const std::vector<ShapeSet> sets = {
      {"v4.1", {{2304, 5120}, {5120, 2304}, {5120, 8192}, {32768, 1280}}},
      {"v4", {{2048, 4096}, {4096, 2048}, {4096, 8192}, {32768, 1024}}},
      {"v3",
       {{18432, 7168},
        {7168, 18432},
        {2048, 7168},
        {7168, 2048},
        {576, 7168},
        {24576, 1536},
        {32768, 512},
        {7168, 16384}}},
      {"gpt-oss", {{5760, 2880}, {2880, 2880}}},
      {"qwen3", {{12288, 4096}, {4096, 12288}, {6144, 4096}, {4096, 4096}}},
      {"smollm2", {{576, 576}, {192, 576}, {1536, 576}, {576, 1536}, {49152, 576}}},
  };
  return sets;
}

struct BenchOptions {
  std::vector<std::string> formats = {"bf16", "fp8-32x32", "mxfp4"};
  std::vector<std::string> shapes = {"v4.1"};
  std::vector<std::int64_t> m = {1};
  double seconds = 1.0;
  bool warm = false;
  int threads = 0;
  std::string isa;
  std::string json;
};

/// Random bytes in an unlinked file, mapped read-only.
class ColdFile {
 public:
  explicit ColdFile(std::int64_t bytes) : bytes_(bytes) {
    const std::filesystem::path folder = std::filesystem::temp_directory_path();
    const std::uintmax_t free = std::filesystem::space(folder).available;
    if (static_cast<std::uintmax_t>(bytes) > free / 2) {
      throw Error(ErrorCode::kIo,
                  fmt::format("bench: {:.1f} GB needed for weights in {} (TMPDIR), {:.1f} GB free",
                              static_cast<double>(bytes) * 1e-9, folder.string(),
                              static_cast<double>(free) * 1e-9));
    }
    std::string name = (folder / "deepinfer-bench-XXXXXX").string();
    const int file = ::mkstemp(name.data());
    if (file < 0) throw Error(ErrorCode::kIo, name + ": " + std::strerror(errno));
    ::unlink(name.c_str());
    std::vector<std::uint64_t> chunk(1 << 17);
    std::uint64_t state = 1;
    for (std::int64_t done = 0; done < bytes;) {
      for (std::uint64_t& word : chunk) {  // xorshift64
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        word = state;
      }
      const auto size = static_cast<std::size_t>(
          std::min<std::int64_t>(bytes - done, static_cast<std::int64_t>(chunk.size()) * 8));
      const ssize_t written = ::write(file, chunk.data(), size);
      if (written <= 0) {
        ::close(file);
        throw Error(ErrorCode::kIo,
                    fmt::format("benchmark file of {} bytes: {}", bytes, std::strerror(errno)));
      }
      done += written;
    }
    data_ = ::mmap(nullptr, static_cast<std::size_t>(bytes), PROT_READ, MAP_SHARED | MAP_POPULATE,
                   file, 0);
    ::close(file);
    if (data_ == MAP_FAILED) throw Error(ErrorCode::kIo, "benchmark file cannot be mapped");
  }
  ColdFile(const ColdFile&) = delete;
  ColdFile& operator=(const ColdFile&) = delete;
  ~ColdFile() { ::munmap(data_, static_cast<std::size_t>(bytes_)); }

  const std::byte* data() const { return static_cast<const std::byte*>(data_); }
  std::int64_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  std::int64_t bytes_;
};

struct Result {
  std::string format;
  Shape shape;
  std::int64_t m;
  double median_us;
  double min_us;
  std::int64_t weight_bytes;
};

/// Weights one after the other in the file; scales lie apart, with ordinary values.
std::vector<Weight> place_weights(const BenchFormat& format, Shape shape, const ColdFile& file,
                                  const std::vector<std::uint8_t>& scales, bool warm) {
  const std::int64_t code_bytes = shape.n * code_row_bytes(format.element, shape.k);
  const std::int64_t copies =
      warm ? 1 : std::clamp<std::int64_t>(file.bytes() / code_bytes, 1, 4096);
  std::vector<Weight> weights;
  for (std::int64_t i = 0; i < copies; ++i) {
    WeightView view;
    view.element = format.element;
    view.codes = file.data() + i * code_bytes;
    view.n = shape.n;
    view.k = shape.k;
    view.scale_type = format.scale;
    view.block_n = format.block_n;
    view.block_k = format.block_k;
    if (format.scale != ScaleType::kNone) {
      view.scales = scales.data();
      view.scale_rows = (shape.n + format.block_n - 1) / format.block_n;
      view.scale_columns = (shape.k + format.block_k - 1) / format.block_k;
    }
    weights.push_back(Weight::prepare(view, format.name));
  }
  return weights;
}

Result measure(const Context& context, const BenchFormat& format, Shape shape, std::int64_t m,
               const ColdFile& file, const BenchOptions& o) {
  const std::int64_t scale_bytes = (shape.n + format.block_n - 1) / format.block_n *
                                   ((shape.k + format.block_k - 1) / format.block_k);
  const std::vector<std::uint8_t> scales(static_cast<std::size_t>(scale_bytes), 120);
  const std::vector<Weight> weights = place_weights(format, shape, file, scales, o.warm);
  std::vector<std::uint16_t> x(static_cast<std::size_t>(m * shape.k));
  for (std::size_t i = 0; i < x.size(); ++i) {  // +-1 to 2 in bf16
    x[i] = static_cast<std::uint16_t>(0x3F80U + (i * 37) % 128 + (i % 3 == 0 ? 0x8000U : 0U));
  }
  std::vector<std::uint16_t> y(static_cast<std::size_t>(m * shape.n));
  const MatrixView in = {x.data(), FloatType::kBf16, m, shape.k, 0};
  const MutableMatrixView out = {y.data(), FloatType::kBf16, m, shape.n, 0};
  std::vector<double> times;
  double total = 0;
  for (std::size_t i = 0; total < o.seconds || times.size() < 3; ++i) {
    const auto start = std::chrono::steady_clock::now();
    linear(context, in, weights[i % weights.size()], out);
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (i == 0) continue;  // the first call makes buffers
    times.push_back(seconds);
    total += seconds;
  }
  std::sort(times.begin(), times.end());
  return {format.name, shape, m, times[times.size() / 2] * 1e6, times[0] * 1e6, weights[0].bytes()};
}

nlohmann::json to_json(const Result& r, const Roofs& roofs, const Context& context) {
  const double flops = 2.0 * static_cast<double>(r.m * r.shape.n * r.shape.k);
  const double gbps = static_cast<double>(r.weight_bytes) / r.median_us * 1e-3;
  const double gflops = flops / r.median_us * 1e-3;
  const double bound_us = std::max(static_cast<double>(r.weight_bytes) / roofs.stream_gbps * 1e-3,
                                   flops / roofs.peak_gflops * 1e-3);
  return {{"format", r.format},
          {"n", r.shape.n},
          {"k", r.shape.k},
          {"m", r.m},
          {"isa", isa_name(context.isa())},
          {"threads", context.num_threads()},
          {"median_us", r.median_us},
          {"min_us", r.min_us},
          {"weight_bytes", r.weight_bytes},
          {"gbps", gbps},
          {"gflops", gflops},
          {"stream_fraction", gbps / roofs.stream_gbps},
          {"dp_fraction", gflops / roofs.peak_gflops},
          {"roofline_fraction", bound_us / r.median_us}};
}

const BenchFormat& format_of(const std::string& name) {
  std::string known;
  for (const BenchFormat& format : kFormats) {
    if (name == format.name) return format;
    known += (known.empty() ? "" : ", ") + std::string(format.name);
  }
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("--format: expected one of {}; found '{}'", known, name));
}

std::vector<Shape> shapes_of(const std::vector<std::string>& names) {
  std::vector<Shape> out;
  for (const std::string& name : names) {
    const auto set = std::find_if(shape_sets().begin(), shape_sets().end(),
                                  [&](const ShapeSet& s) { return name == s.name; });
    if (set != shape_sets().end()) {
      out.insert(out.end(), set->shapes.begin(), set->shapes.end());
      continue;
    }
    long long n = 0;
    long long k = 0;
    int used = 0;
    if (std::sscanf(name.c_str(), "%lldx%lld%n", &n, &k, &used) != 2 ||
        static_cast<std::size_t>(used) != name.size() || n < 1 || k < 2 || k % 2 != 0 ||
        n > (1 << 24) || k > (1 << 24)) {
      throw Error(ErrorCode::kInvalidArgument,
                  "--shape: expected NxK with even K, or a set (v4.1, v4, v3, gpt-oss, qwen3, "
                  "smollm2); found '" +
                      name + "'");
    }
    out.push_back({n, k});
  }
  return out;
}

std::int64_t last_level_cache(const SystemInfo& info) {
  std::int64_t bytes = 0;
  for (const CacheInfo& cache : info.caches) bytes = std::max(bytes, cache.bytes);
  return bytes;
}

Context make_context(const BenchOptions& o) {
  ContextOptions options = {.num_threads = o.threads, .isa = {}};
  for (const Isa isa : {Isa::kRef, Isa::kAvx2, Isa::kAvx512bf16}) {
    if (!o.isa.empty() && isa_name(isa) == o.isa) options.isa = isa;
  }
  return Context(options);
}

int run(const BenchOptions& o) {
  const std::vector<Shape> shapes = shapes_of(o.shapes);
  for (const std::string& name : o.formats) format_of(name);
  const Context context = make_context(o);
  const SystemInfo info = system_info();
  // Three times the last-level cache: what is read is never what was left from the last round.
  const std::int64_t file_bytes =
      std::clamp<std::int64_t>(3 * last_level_cache(info), 256 << 20, std::int64_t{2} << 30);
  std::int64_t largest = 0;
  for (const Shape& s : shapes) largest = std::max(largest, s.n * s.k * 2);
  const ColdFile file(std::max(file_bytes, largest));
  const Roofs roofs = measure_roofs(context, file.data(), file.bytes(), o.seconds);
  nlohmann::json report = {
      {"schema", 1},
      {"contract", kNumericContract},
      {"machine", {{"cpu", info.cpu}, {"threads", context.num_threads()}}},
      {"roofs", {{"stream_gbps", roofs.stream_gbps}, {"dp_gflops", roofs.peak_gflops}}},
      {"results", nlohmann::json::array()}};
  const bool quiet = o.json == "-";
  if (!quiet) {
    fmt::print("{}, {} threads, {}: stream {:.1f} GB/s, peak {:.0f} GFLOP/s\n", info.cpu,
               context.num_threads(), isa_name(context.isa()), roofs.stream_gbps,
               roofs.peak_gflops);
    fmt::print("{:<12} {:>14} {:>5} {:>12} {:>8} {:>9} {:>7} {:>6} {:>9}\n", "format", "n x k", "m",
               "median us", "GB/s", "GFLOP/s", "stream", "peak", "roofline");
  }
  for (const std::string& name : o.formats) {
    for (const Shape& shape : shapes) {
      for (const std::int64_t m : o.m) {
        const nlohmann::json r =
            to_json(measure(context, format_of(name), shape, m, file, o), roofs, context);
        report["results"].push_back(r);
        if (quiet) continue;
        fmt::print("{:<12} {:>14} {:>5} {:>12.1f} {:>8.2f} {:>9.1f} {:>7.2f} {:>6.2f} {:>9.2f}\n",
                   name, fmt::format("{} x {}", shape.n, shape.k), m, r["median_us"].get<double>(),
                   r["gbps"].get<double>(), r["gflops"].get<double>(),
                   r["stream_fraction"].get<double>(), r["dp_fraction"].get<double>(),
                   r["roofline_fraction"].get<double>());
        std::fflush(stdout);
      }
    }
  }
  if (quiet) fmt::print("{}\n", report.dump(2));
  if (!o.json.empty() && !quiet) {
    std::ofstream out(o.json);
    out << report.dump(2) << "\n";
    if (!out.flush()) throw Error(ErrorCode::kIo, o.json + ": cannot be written");
  }
  return kOk;
}

}  // namespace

void add_bench(CLI::App& app, Command& command) {
  CLI::App* bench = app.add_subcommand("bench", "Measure rates beside the roofs of the machine");
  bench->require_subcommand(1);
  CLI::App* sub = bench->add_subcommand(
      "gemm",
      "linear() on cold weights in a temporary file in TMPDIR (up to 2 GB, more for larger "
      "matrices)");
  auto o = std::make_shared<BenchOptions>();
  sub->add_option("--format", o->formats, "bf16, fp8-32x32, fp8-128x128, mxfp8, mxfp4")
      ->delimiter(',')
      ->capture_default_str();
  sub->add_option("--shape", o->shapes, "NxK, or a set: v4.1, v4, v3, gpt-oss, qwen3, smollm2")
      ->delimiter(',')
      ->capture_default_str();
  sub->add_option("--m", o->m, "Rows of x")
      ->delimiter(',')
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
  sub->add_option("--seconds", o->seconds, "Time for each result and for the roofs")
      ->check(CLI::Range(0.01, 600.0))
      ->capture_default_str();
  sub->add_flag("--warm", o->warm, "Use one copy of the weights again and again");
  add_threads_option(*sub, o->threads);
  sub->add_option("--isa", o->isa, "Instruction set; default: DEEPINFER_ISA, else the best")
      ->check(CLI::IsMember({"ref", "avx2", "avx512bf16"}));
  sub->add_option("--json", o->json, "Write the results to this file; - for standard output");
  sub->callback([&command, o] { command.run = [o] { return run(*o); }; });
}

}  // namespace deepinfer::cli
