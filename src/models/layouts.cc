#include "models/layouts.h"

namespace deepinfer::models {
namespace {

// Where config.json is what decides.
constexpr When kSilent = {Method::kNone, "nothing about quantization"};
constexpr When kFp8 = {Method::kFp8, "quant_method \"fp8\""};
constexpr When kFp4Expert = {
    Method::kFp8, "quant_method \"fp8\" and expert_dtype \"fp4\", and the name has \".experts.\"",
    ".experts."};
constexpr When kEngram = {Method::kFp8, "quant_method \"fp8\", and the name has \".engram.\"",
                          ".engram."};
constexpr When kMxfp4 = {Method::kMxfp4, "quant_method \"mxfp4\""};
constexpr When kGroup = {Method::kCompressedTensors,
                         "quant_method \"compressed-tensors\" and a group with such weights"};
constexpr When kModelOpt = {Method::kModelOpt,
                            "quant_method \"modelopt\" and quant_algo \"NVFP4\" or \"MXFP8\""};
constexpr When kQuark = {Method::kQuark, "quant_method \"quark\" and weights of dtype \"fp4\""};

// A byte does not say what it holds: U8 and I8 are containers. F4 comes from re-saving with torch.
constexpr Codes kFp8Codes = {".weight", {DType::kF8E4m3}, CodeShape::kElements};
constexpr Codes kI8Codes = {".weight", {DType::kI8, DType::kF4}, CodeShape::kPairs};
constexpr Codes kU8Codes = {".weight", {DType::kU8, DType::kF4}, CodeShape::kPairs};
constexpr Codes kPackedCodes = {".weight_packed", {DType::kU8, DType::kF4}, CodeShape::kPairs};
constexpr Codes kBlockCodes = {"_blocks", {DType::kU8}, CodeShape::kBlocks};
constexpr Codes kOriginalBlockCodes = {".blocks", {DType::kU8}, CodeShape::kBlocks};

// "_inv" is history: every scale here multiplies, but for the second one of compressed-tensors. The
// I32 of DeepGEMM holds four e8m0 bytes along k, the lowest k in the lowest byte, one row of them
// for each row of the weight.
constexpr Set<DType> kE8m0 = {DType::kF8E8m0, DType::kU8};
constexpr Set<DType> kE8m0OrPacked = {DType::kF8E8m0, DType::kU8, DType::kI32};
constexpr Set<DType> kNumbers = {DType::kF32, DType::kBf16, DType::kF16};
constexpr Set<DType> kAny = {DType::kF32,    DType::kBf16, DType::kF16,
                             DType::kF8E8m0, DType::kU8,   DType::kI32};
constexpr Set<DType> kUnpacked = {DType::kF32, DType::kBf16, DType::kF16, DType::kF8E8m0,
                                  DType::kU8};
constexpr std::array<std::string_view, 3> kThreeNames = {".weight_scale_inv", ".weight_scale",
                                                         ".scale"};
constexpr Scales kBlockScales = {kThreeNames, kAny};
constexpr Scales kRowScales = {kThreeNames, kE8m0OrPacked};
constexpr Scales kLooseScales = {kThreeNames, kUnpacked};
constexpr Scales kNumberScales = {kThreeNames, kNumbers};
constexpr Scales kGroupScales = {{".weight_scale"}, kUnpacked};
constexpr Scales kGroupNumbers = {{".weight_scale"}, kNumbers};
constexpr Scales kGroupE8m0 = {{".weight_scale"}, kE8m0};
constexpr Scales kGroupNvfp4 = {
    {".weight_scale"}, {DType::kF8E4m3}, ".weight_global_scale", /*tensor_divides=*/true};
constexpr Scales kModelOptNvfp4 = {{".weight_scale"}, {DType::kF8E4m3}, ".weight_scale_2"};
constexpr Scales kBlockCodeScales = {{"_scales"}, kE8m0};
constexpr Scales kOriginalBlockScales = {{".scales"}, kE8m0};

constexpr Element kEight = Element::kE4m3fn;
constexpr Element kFour = Element::kE2m1;
constexpr std::string_view kNoNvfp4 = "no kernel takes NVFP4 (1 x 16 blocks, e4m3 scales)";

constexpr Layout kLayouts[] = {
    {"DeepSeek-V3 to V4.1, Kimi-K2, Qwen3-FP8, MiniMax-M2, GLM-5", kFp8, kEight, Grid::kBlock,
     kFp8Codes, kBlockScales},
    {"Mistral", kFp8, kEight, Grid::kTensor, kFp8Codes, kNumberScales},
    {"DeepSeek-V4 and V4.1 experts", kFp4Expert, kFour, Grid::kRow32, kI8Codes, kRowScales},
    {"DeepSeek-V4.1 engram tables", kEngram, kEight, Grid::kRow32, kFp8Codes, kRowScales},
    {"gpt-oss", kMxfp4, kFour, Grid::kRow32, kBlockCodes, kBlockCodeScales, "gate_up_proj"},
    {"compressed-tensors block", kGroup, kEight, Grid::kBlock, kFp8Codes, kGroupScales},
    {"compressed-tensors channel, GLM-4", kGroup, kEight, Grid::kChannel, kFp8Codes, kGroupNumbers},
    {"compressed-tensors tensor", kGroup, kEight, Grid::kTensor, kFp8Codes, kGroupNumbers},
    {"compressed-tensors mxfp8", kGroup, kEight, Grid::kRow32, kFp8Codes, kGroupScales},
    {"compressed-tensors mxfp4, Kimi-K3", kGroup, kFour, Grid::kRow32, kPackedCodes, kGroupE8m0},
    {"compressed-tensors nvfp4", kGroup, kFour, Grid::kRow16, kPackedCodes, kGroupNvfp4, "",
     kNoNvfp4},
    {"ModelOpt MXFP8", kModelOpt, kEight, Grid::kRow32, kFp8Codes, kGroupE8m0},
    {"ModelOpt NVFP4", kModelOpt, kFour, Grid::kRow16, kU8Codes, kModelOptNvfp4, "", kNoNvfp4},
    {"Quark MXFP4", kQuark, kFour, Grid::kRow32, kU8Codes, kGroupE8m0},
    // Without a configuration: what names, data types and shapes say by themselves.
    {"blocks", kSilent, kEight, Grid::kBlock, kFp8Codes, kLooseScales},
    {"mxfp8", kSilent, kEight, Grid::kRow32, kFp8Codes, kLooseScales},
    {"channels", kSilent, kEight, Grid::kChannel, kFp8Codes, kNumberScales},
    {"one scale", kSilent, kEight, Grid::kTensor, kFp8Codes, kNumberScales},
    {"packed mxfp4", kSilent, kFour, Grid::kRow32, kPackedCodes, kGroupE8m0},
    {"gpt-oss", kSilent, kFour, Grid::kRow32, kBlockCodes, kBlockCodeScales, "gate_up_proj"},
    {"gpt-oss as released by OpenAI", kSilent, kFour, Grid::kRow32, kOriginalBlockCodes,
     kOriginalBlockScales, "mlp1_weight"},
};

}  // namespace

std::span<const Layout> layouts() noexcept { return kLayouts; }

}  // namespace deepinfer::models
