// The folders that quantize() writes: which tensors, which names, which other files, and that
// nothing is left under the final name when the work does not come to its end.
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "deepinfer/checkpoint.h"
#include "deepinfer/error.h"
#include "deepinfer/quantize.h"
#include "deepinfer/weight_map.h"
#include "formats/bf16.h"
#include "formats/e8m0.h"
#include "random_data.h"
#include "safetensors_builder.h"

namespace deepinfer {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::SafetensorsBuilder;
using testing::TempDir;
using testing::write_file;

constexpr const char* kConfig = R"({"model_type": "llama", "rms_norm_eps": 1e-05})";
constexpr const char* kQ = "model.layers.0.self_attn.q_proj";
constexpr const char* kUp = "model.layers.0.mlp.up_proj";

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::vector<std::uint8_t> random_bf16(std::uint64_t seed, std::int64_t count) {
  test::Random random(seed);
  std::vector<std::uint8_t> bytes;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint16_t code = random.bf16(6);
    bytes.push_back(static_cast<std::uint8_t>(code & 0xFF));
    bytes.push_back(static_cast<std::uint8_t>(code >> 8));
  }
  return bytes;
}

/// A small model: linear weights, and everything that must be left alone.
class Model {
 public:
  explicit Model(const std::string& config = kConfig) {
    fs::create_directory(in());
    write_file(in() / "config.json", config);
    write_file(in() / "tokenizer.json", "{\"any\": \"bytes\"}");
    write_file(in() / "LICENSE", "Apache-2.0\n");
    write_file(in() / "pytorch_model.bin", "not wanted");
    first_.metadata("origin", "test")
        .add("model.embed_tokens.weight", DType::kBf16, {40, 64}, random_bf16(1, 40 * 64))
        .add("model.layers.0.mlp.gate.weight", DType::kF32, {2, 64},
             std::vector<float>(2 * 64, 0.5F))
        .add("model.layers.0.norm.weight", DType::kBf16, {64}, random_bf16(2, 64))
        .add(std::string(kQ) + ".bias", DType::kF16, {64}, random_bf16(3, 64))
        .add(std::string(kQ) + ".weight", DType::kBf16, {64, 64}, random_bf16(4, 64 * 64));
    second_.add(std::string(kUp) + ".weight", DType::kBf16, {300, 64}, random_bf16(5, 300 * 64));
  }

  fs::path in() const { return dir_.path() / "in"; }
  fs::path out() const { return dir_.path() / "out"; }
  SafetensorsBuilder& first() { return first_; }

  Model& write() {
    first_.write(in() / "a.safetensors");
    second_.write(in() / "b.safetensors");
    return *this;
  }

  QuantizeReport quantize(const QuantizeOptions& options, int threads = 2) const {
    const Context context({.num_threads = threads, .isa = std::nullopt});
    return deepinfer::quantize(context, in(), out(), options);
  }

  /// The message of the refusal. Nothing may be left of the output.
  std::string refusal(const QuantizeOptions& options, ErrorCode code) const {
    try {
      quantize(options);
      ADD_FAILURE() << "accepted";
      return "";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code) << error.what();
      EXPECT_FALSE(fs::exists(out()));
      EXPECT_EQ(partial_folders(), 0);
      return error.what();
    }
  }

  int partial_folders() const {
    int count = 0;
    for (const auto& entry : fs::directory_iterator(dir_.path())) {
      if (entry.path().string().find(".partial") != std::string::npos) ++count;
    }
    return count;
  }

 private:
  TempDir dir_;
  SafetensorsBuilder first_;
  SafetensorsBuilder second_;
};

QuantizeOptions format(const char* name, std::vector<FormatRule> rules = {}) {
  return {.format = name, .rules = std::move(rules), .progress = {}};
}

#define EXPECT_HAS(text, part) \
  EXPECT_NE(std::string(text).find(part), std::string::npos) << "in: " << (text)

std::string bytes_of(const Checkpoint& checkpoint, const std::string& name) {
  const TensorView& view = checkpoint.at(name).view;
  return {reinterpret_cast<const char*>(view.data), view.size_bytes};
}

TEST(quantize_files_test, fp8_alone_is_written_as_transformers_reads_it) {
  Model model;
  model.write().quantize(format("fp8-32x32"));
  const Checkpoint out = Checkpoint::open(model.out());
  EXPECT_EQ(out.at(std::string(kQ) + ".weight").view.dtype, DType::kF8E4m3);
  const TensorView& scales = out.at(std::string(kUp) + ".weight_scale_inv").view;
  EXPECT_EQ(scales.dtype, DType::kF8E8m0);
  EXPECT_EQ(scales.shape, (std::vector<std::int64_t>{10, 2}));  // 300 rows are 9.4 blocks
  const json config = json::parse(read_file(model.out() / "config.json"));
  EXPECT_EQ(config["model_type"], "llama");
  const json& block = config["quantization_config"];
  EXPECT_EQ(block["quant_method"], "fp8");
  EXPECT_EQ(block["weight_block_size"], (json{32, 32}));
  EXPECT_EQ(block["scale_fmt"], "ue8m0");
  EXPECT_EQ(block["modules_to_not_convert"],
            (json{"lm_head", "model.embed_tokens", "model.layers.0.mlp.gate"}));
  EXPECT_TRUE(WeightMap::build(out).problems().empty());
}

TEST(quantize_files_test, what_is_no_linear_weight_keeps_its_bytes) {
  Model model;
  model.write().quantize(format("mxfp4"));
  const Checkpoint in = Checkpoint::open(model.in());
  const Checkpoint out = Checkpoint::open(model.out());
  int copied = 0;
  for (const Tensor& tensor : in.tensors()) {
    if (tensor.name.ends_with("_proj.weight")) continue;
    EXPECT_EQ(out.at(tensor.name).view.dtype, tensor.view.dtype);
    EXPECT_EQ(bytes_of(out, tensor.name), bytes_of(in, tensor.name)) << tensor.name;
    ++copied;
  }
  EXPECT_EQ(copied, 4);
  for (const char* file : {"tokenizer.json", "LICENSE"}) {
    EXPECT_EQ(read_file(model.out() / file), read_file(model.in() / file));
  }
  EXPECT_FALSE(fs::exists(model.out() / "pytorch_model.bin"));
}

TEST(quantize_files_test, a_mixture_is_written_as_compressed_tensors) {
  Model model;
  // The first rule that matches wins.
  const QuantizeReport report =
      model.write().quantize(format("mxfp8", {{"self_attn", "fp8-32x32"}, {"proj", "mxfp4"}}));
  ASSERT_EQ(report.formats.size(), 3u);
  EXPECT_EQ(report.formats[0].format, "copied");
  EXPECT_EQ(report.formats[0].tensors, 4);
  const json config = json::parse(read_file(model.out() / "config.json"));
  const json& block = config["quantization_config"];
  EXPECT_EQ(block["quant_method"], "compressed-tensors");
  EXPECT_EQ(block["format"], "mixed-precision");
  const json& fp8 = block["config_groups"]["group_0"];
  EXPECT_EQ(fp8["format"], "float-quantized");
  EXPECT_EQ(fp8["targets"], json::array({kQ}));
  EXPECT_EQ(fp8["weights"]["strategy"], "block");
  EXPECT_EQ(fp8["weights"]["block_structure"], (json{32, 32}));
  const json& fp4 = block["config_groups"]["group_1"];
  EXPECT_EQ(fp4["format"], "mxfp4-pack-quantized");
  EXPECT_EQ(fp4["targets"], json::array({kUp}));
  EXPECT_EQ(fp4["weights"]["num_bits"], 4);
  EXPECT_EQ(fp4["weights"]["group_size"], 32);
  const Checkpoint out = Checkpoint::open(model.out());
  EXPECT_EQ(out.at(std::string(kQ) + ".weight_scale").view.dtype, DType::kBf16);
  EXPECT_EQ(out.at(std::string(kUp) + ".weight_packed").view.dtype, DType::kU8);
  EXPECT_EQ(out.at(std::string(kUp) + ".weight_scale").view.dtype, DType::kU8);
  const WeightMap map = WeightMap::build(out);
  EXPECT_TRUE(map.problems().empty());
  EXPECT_EQ(map.at(kQ).format, "fp8-32x32");
  EXPECT_EQ(map.at(kUp).format, "mxfp4");
}

TEST(quantize_files_test, bf16_scales_of_a_mixture_are_the_e8m0_scales) {
  Model mixture;
  QuantizeOptions options = format("mxfp4");
  options.rules = {{"q_proj", "fp8-32x32"}};
  mixture.write().quantize(options);
  Model alone;
  alone.write().quantize(format("fp8-32x32"));
  const Checkpoint a = Checkpoint::open(mixture.out());
  const Checkpoint b = Checkpoint::open(alone.out());
  const TensorView& bf16 = a.at(std::string(kQ) + ".weight_scale").view;
  const TensorView& e8m0 = b.at(std::string(kQ) + ".weight_scale_inv").view;
  ASSERT_EQ(bf16.shape, e8m0.shape);
  for (std::size_t i = 0; i < e8m0.size_bytes; ++i) {
    std::uint16_t code = 0;
    std::memcpy(&code, bf16.data + 2 * i, sizeof(code));
    EXPECT_EQ(formats::decode_bf16(code),
              formats::decode_e8m0(static_cast<std::uint8_t>(e8m0.data[i])));
  }
}

TEST(quantize_files_test, files_of_the_source_keep_their_names_and_get_an_index) {
  Model model;
  const QuantizeReport report = model.write().quantize(format("mxfp8"));
  EXPECT_EQ(report.files, (std::vector<std::string>{"a.safetensors", "b.safetensors"}));
  const json index = json::parse(read_file(model.out() / "model.safetensors.index.json"));
  EXPECT_EQ(index["weight_map"].size(), 8u);
  EXPECT_EQ(index["weight_map"][std::string(kUp) + ".weight_scale"], "b.safetensors");
  std::uint64_t bytes = 0;
  for (const std::string& file : report.files) bytes += fs::file_size(model.out() / file);
  EXPECT_EQ(report.output_bytes, bytes);
}

TEST(quantize_files_test, the_output_says_how_and_from_what_it_was_made) {
  Model model;
  model.write().quantize(format("fp8-128x128"));
  const auto metadata = Checkpoint::open(model.out() / "a.safetensors").metadata();
  EXPECT_EQ(metadata.at("format"), "pt");
  EXPECT_EQ(metadata.at("origin"), "test");  // of the source
  EXPECT_HAS(metadata.at("quantized_by"), "deepinfer ");
  EXPECT_EQ(metadata.at("numeric_contract"), "1");
  EXPECT_HAS(metadata.at("scale_rule"), "round-up");
  EXPECT_HAS(metadata.at("scale_limits"), "e4m3fn 448");
  EXPECT_EQ(metadata.at("source_file"), "a.safetensors");
  EXPECT_EQ(metadata.at("source_sha256").size(), 64u);
  EXPECT_NE(metadata.at("source_sha256"), std::string(64, '0'));
}

TEST(quantize_files_test, bytes_do_not_depend_on_threads) {
  Model model;
  model.write();
  std::map<std::string, std::string> first;
  for (const int threads : {1, 2, 3}) {
    model.quantize(format("mxfp4", {{"self_attn", "fp8-32x32"}}), threads);
    for (const auto& entry : fs::directory_iterator(model.out())) {
      const std::string name = entry.path().filename().string();
      const std::string bytes = read_file(entry.path());
      const auto [place, is_new] = first.emplace(name, bytes);
      if (!is_new) {
        EXPECT_EQ(place->second, bytes) << name << " with " << threads << " threads";
      }
    }
    fs::remove_all(model.out());
  }
  EXPECT_EQ(first.size(), 6u);
}

TEST(quantize_files_test, progress_ends_with_all_bytes) {
  Model model;
  QuantizeOptions options = format("mxfp8");
  std::uint64_t last = 0;
  std::uint64_t total = 1;
  options.progress = [&](std::uint64_t done, std::uint64_t all) {
    EXPECT_GE(done, last);
    last = done;
    total = all;
  };
  const QuantizeReport report = model.write().quantize(options);
  EXPECT_EQ(last, total);
  EXPECT_EQ(total, report.source_bytes);
}

TEST(quantize_files_test, a_quantized_source_is_refused_by_name) {
  Model by_config(R"({"quantization_config": {"quant_method": "awq"}})");
  EXPECT_HAS(by_config.write().refusal(format("mxfp8"), ErrorCode::kUnsupported), "\"awq\"");
  Model by_tensor;
  by_tensor.first().add("x.weight_packed", DType::kU8, {2, 2}, std::vector<std::uint8_t>(4, 0));
  EXPECT_HAS(by_tensor.write().refusal(format("mxfp8"), ErrorCode::kUnsupported),
             "x.weight_packed\" has data type U8");
}

TEST(quantize_files_test, usage_that_cannot_be_meant_is_refused) {
  Model model;
  model.write();
  constexpr ErrorCode kUsage = ErrorCode::kInvalidArgument;
  EXPECT_HAS(model.refusal(format("fp9"), kUsage), "expected one of: bf16 fp8-32x32");
  EXPECT_HAS(model.refusal(format("bf16", {{"mlp", "int4"}}), kUsage), "\"int4\"");
  EXPECT_HAS(model.refusal(format("bf16", {{"(", "mxfp4"}}), kUsage), "rule \"(\"");
  EXPECT_HAS(model.refusal(format("bf16", {{"no_such", "mxfp4"}}), kUsage), "matches no linear");
  EXPECT_HAS(model.refusal(format("bf16", {{"lm_head", "mxfp4"}}), kUsage), "matches no linear");
}

TEST(quantize_files_test, an_output_that_exists_is_left_as_it_is) {
  Model model;
  model.write();
  fs::create_directory(model.out());
  model.quantize(format("mxfp8"));  // an empty folder is as good as none
  const std::string before = read_file(model.out() / "config.json");
  try {
    model.quantize(format("mxfp4"));
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_HAS(error.what(), "already exists, and is not empty");
  }
  EXPECT_EQ(read_file(model.out() / "config.json"), before);
  fs::remove_all(model.out());
  write_file(model.out(), "a file");
  EXPECT_THROW(model.quantize(format("mxfp8")), Error);
  EXPECT_EQ(read_file(model.out()), "a file");
  EXPECT_EQ(model.partial_folders(), 0);
}

TEST(quantize_files_test, a_place_for_no_folders_is_named) {
  Model model;
  model.write();
  const Context context({.num_threads = 1, .isa = std::nullopt});
  try {
    quantize(context, model.in(), "/proc/deepinfer-out/", format("mxfp8"));
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kIo);
    EXPECT_HAS(error.what(), "/proc/deepinfer-out");
    EXPECT_HAS(error.what(), "cannot be created: ");
  }
}

TEST(quantize_files_test, an_unwritable_folder_is_named) {
  Model model;
  model.write();
  const fs::path parent = model.out().parent_path();
  ::chmod(parent.c_str(), 0555);
  const pid_t child = ::fork();
  if (child == 0) {
    constexpr uid_t kNobody = 65534;  // root may write anywhere
    if (::geteuid() == 0 && ::seteuid(kNobody) != 0) ::_exit(2);
    const std::string message = model.refusal(format("mxfp8"), ErrorCode::kIo);
    const bool good = message.find("cannot be created: Permission denied") != std::string::npos;
    ::_exit(good && !::testing::Test::HasFailure() ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ::chmod(parent.c_str(), 0755);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

TEST(quantize_files_test, a_write_that_fails_half_way_leaves_nothing) {
  Model model;
  model.write();
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit old_limit = {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old_limit), 0);
  const rlimit limit = {4096, old_limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  const std::string message = model.refusal(format("mxfp8"), ErrorCode::kIo);
  ::setrlimit(RLIMIT_FSIZE, &old_limit);
  std::signal(SIGXFSZ, old_handler);
  EXPECT_HAS(message, "a.safetensors: cannot be written: File too large");
}

TEST(quantize_files_test, a_full_disk_leaves_nothing) {
  Model model;
  model.write();
  const TempDir mount_point;
  if (::mount("tmpfs", mount_point.path().c_str(), "tmpfs", 0, "size=16k") != 0) {
    GTEST_SKIP() << "no right to mount a small disk: ENOSPC was NOT tested";
  }
  const Context context({.num_threads = 2, .isa = std::nullopt});
  try {
    quantize(context, model.in(), mount_point.path() / "out", format("mxfp8"));
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kIo);
    EXPECT_HAS(error.what(), "b.safetensors: cannot be written: No space left on device");
  }
  EXPECT_TRUE(fs::is_empty(mount_point.path()));
  EXPECT_EQ(::umount(mount_point.path().c_str()), 0);
}

TEST(quantize_files_test, an_interrupted_run_leaves_nothing_under_the_final_name) {
  struct Stop {};
  Model model;
  model.write();
  QuantizeOptions options = format("mxfp8");
  options.progress = [](std::uint64_t, std::uint64_t) { throw Stop{}; };
  EXPECT_THROW(model.quantize(options), Stop);
  EXPECT_FALSE(fs::exists(model.out()));
  EXPECT_EQ(model.partial_folders(), 0);

  const pid_t child = ::fork();
  if (child == 0) {
    options.progress = [](std::uint64_t done, std::uint64_t total) {
      if (done == total) ::raise(SIGKILL);  // nothing can be tidied up then
    };
    model.quantize(options);
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_FALSE(fs::exists(model.out()));
  EXPECT_EQ(model.partial_folders(), 1);
  model.quantize(format("mxfp8"));  // takes the place of what was left
  EXPECT_EQ(model.partial_folders(), 0);
  EXPECT_TRUE(fs::exists(model.out() / "config.json"));
}

}  // namespace
}  // namespace deepinfer
