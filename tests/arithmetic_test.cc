// The golden digests of the numeric contract: every instruction set of this CPU must give them.
// Also writes the corpus with its results, for the oracle in tests/oracle, into $DEEPINFER_CORPUS.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "corpus.h"
#include "deepinfer/version.h"
#include "kernels/registry.h"

namespace deepinfer {
namespace {

using test::CodedCorpus;
using test::Corpus;
using test::FormatCase;

std::string digest(const FormatCase& format, const Context& context) {
  std::uint64_t hash = 0xCBF29CE484222325ULL;  // FNV-1a
  for (const Corpus& c : test::make_corpus(format)) {
    for (const std::uint32_t bits : test::compute(context, c)) {
      for (int shift = 0; shift < 32; shift += 8) {
        hash = (hash ^ ((bits >> shift) & 0xFFU)) * 0x100000001B3ULL;
      }
    }
  }
  return fmt::format("{:016x}", hash);
}

TEST(arithmetic_test, digests_are_those_of_the_contract) {
  std::ifstream file(std::string(DEEPINFER_SOURCE_DIR) + "/tests/golden/digests.json");
  const nlohmann::json golden = nlohmann::json::parse(file, nullptr, false);
  ASSERT_TRUE(golden.is_object());
  ASSERT_EQ(golden["contract"], kNumericContract) << "a new contract needs an ADR and new digests";
  for (const kernels::IsaTable* table : kernels::isa_tables()) {
    if (const auto reason = kernels::why_not(table->isa)) {
      GTEST_LOG_(WARNING) << "NOT TESTED HERE: " << table->name << ": " << *reason;
      continue;
    }
    const Context context({.num_threads = 2, .isa = table->isa});
    for (const FormatCase& format : test::kFormatCases) {
      EXPECT_EQ(golden["digests"].value(format.name, ""), digest(format, context))
          << format.name << " on " << table->name;
    }
  }
}

TEST(arithmetic_test, case_048_one_row_on_every_isa_of_the_build) {
  constexpr std::int64_t kN = 224;
  for (const std::int64_t k : {512, 576}) {
    const std::vector<std::uint8_t> codes(static_cast<std::size_t>(kN * k), 0x38);       // 1
    const std::vector<std::uint8_t> scales(static_cast<std::size_t>(kN * k / 32), 127);  // 1
    const std::vector<float> x(static_cast<std::size_t>(k), 1.0F);
    WeightView view = {.element = Element::kE4m3fn, .codes = codes.data(), .n = kN, .k = k};
    view.scale_type = ScaleType::kE8m0;
    view.scales = scales.data();
    view.scale_rows = kN;
    view.scale_columns = k / 32;
    const Weight w = Weight::prepare(view, "w");
    for (const kernels::IsaTable* table : kernels::isa_tables()) {
      if (kernels::why_not(table->isa)) continue;
      std::vector<float> y(kN, -1.0F);
      linear(Context({.num_threads = 1, .isa = table->isa}), {x.data(), FloatType::kF32, 1, k, 0},
             w, {y.data(), FloatType::kF32, 1, kN, 0});
      EXPECT_EQ(y, std::vector<float>(kN, static_cast<float>(k))) << table->name;
    }
  }
}

// ---- the corpus as files: a JSON line, then the arrays one after the other ----

void put(std::string& out, const void* data, std::size_t bytes) {
  out.append(static_cast<const char*>(data), bytes);
}

/// One file in the making.
class CorpusFile {
 public:
  explicit CorpusFile(const std::string& name) {
    header_ = {{"format", name}, {"contract", kNumericContract}};
    header_["arrays"] = nlohmann::json::array();
  }

  nlohmann::json& header() { return header_; }

  void add(const char* name, const char* dtype, std::vector<std::int64_t> shape, const void* bytes,
           std::size_t size) {
    header_["arrays"].push_back({{"name", name}, {"dtype", dtype}, {"shape", shape}});
    put(data_, bytes, size);
  }

  void add_weight(const test::TestWeight& t) {
    const WeightView& v = t.view;
    const Weight w = t.prepare();
    const bool bf16 = v.element == Element::kBf16;
    const bool e8m0 = v.scale_type == ScaleType::kE8m0;
    add("codes", bf16 ? "u16" : "u8", {v.n, v.element == Element::kE2m1 ? v.k / 2 : v.k},
        t.codes.data(), t.codes.size());
    if (e8m0) {
      add("scales", "u8", {v.scale_rows, v.scale_columns}, t.scales.data(), t.scales.size());
    } else if (!bf16) {
      add("scales", "f32", {v.scale_rows, v.scale_columns}, w.f32_scales().data(),
          w.f32_scales().size() * 4);
    }
    constexpr const char* kElements[] = {"bf16", "e4m3fn", "e2m1"};
    header_["element"] = kElements[static_cast<int>(v.element)];
    header_["block_n"] = std::min(v.block_n, v.n);
    header_["block_k"] = std::min(v.block_k, (v.k + 31) / 32 * 32);
    header_["scale"] = bf16 ? "none" : e8m0 ? "e8m0" : "f32";
  }

  std::string text() const { return header_.dump() + "\n" + data_; }

 private:
  nlohmann::json header_;
  std::string data_;
};

std::string corpus_file(const Corpus& c, const std::vector<std::uint32_t>& y) {
  const WeightView& v = c.weight.view;
  CorpusFile file(c.name);
  file.header()["quantize"] = c.activations == Activations::kQuantize224 ? 224 : 0;
  file.add("x", "f32", {c.m, v.k}, c.x.data(), c.x.size() * 4);
  file.add_weight(c.weight);
  if (!c.bias.empty()) file.add("bias", "f32", {v.n}, c.bias.data(), c.bias.size() * 4);
  file.add("y", "u32", {c.m, v.n}, y.data(), y.size() * 4);
  return file.text();
}

std::string corpus_file(const CodedCorpus& c, const std::vector<std::uint32_t>& y) {
  const WeightView& v = c.weight.view;
  const std::int64_t columns = (v.k + c.block_k - 1) / c.block_k;
  CorpusFile file(c.name);
  file.header()["x_block_k"] = c.block_k;
  file.header()["quantize"] = v.element == Element::kE2m1 ? 224 : 0;  // gemm on fp4
  file.add("x_codes", "u8", {c.m, v.k}, c.codes.data(), c.codes.size());
  if (c.bytes.empty()) {
    file.add("x_scales", "f32", {c.m, columns}, c.scales.data(), c.scales.size() * 4);
  } else {
    file.add("x_scales", "u8", {c.m, columns}, c.bytes.data(), c.bytes.size());
  }
  file.add_weight(c.weight);
  file.add("y", "u32", {c.m, v.n}, y.data(), y.size() * 4);
  return file.text();
}

template <class AnyCorpus>
void write_corpus(const std::filesystem::path& folder, const Context& context, const AnyCorpus& c) {
  std::ofstream file(folder / (c.name + ".corpus"), std::ios::binary);
  file << corpus_file(c, test::compute(context, c));
  ASSERT_TRUE(file.good()) << c.name;
}

TEST(arithmetic_test, writes_the_corpus_for_the_oracle) {
  const char* folder = std::getenv("DEEPINFER_CORPUS");
  if (folder == nullptr) GTEST_SKIP() << "DEEPINFER_CORPUS is not set: no files wanted";
  std::filesystem::create_directories(folder);
  const Context context;
  for (const FormatCase& format : test::kFormatCases) {
    for (const Corpus& c : test::make_corpus(format)) write_corpus(folder, context, c);
    for (const CodedCorpus& c : test::make_coded_corpus(format)) write_corpus(folder, context, c);
  }
  // What tests/golden/digests.json holds; to replace it needs an ADR and a new contract version.
  nlohmann::json digests = {{"contract", kNumericContract}};
  for (const FormatCase& format : test::kFormatCases) {
    digests["digests"][format.name] = digest(format, context);
  }
  std::ofstream(std::filesystem::path(folder) / "digests.json") << digests.dump(2) << "\n";
}

}  // namespace
}  // namespace deepinfer
