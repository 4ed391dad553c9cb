#include "kernels/registry.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "formats/bf16.h"
#include "kernels/cpu.h"
#include "kernels/isa_tables.h"

namespace deepinfer::kernels {
namespace {

#if defined(__x86_64__)
constexpr const IsaTable* kTables[] = {&kAvx512Table, &kAvx2Table, &kRefTable};
#else
constexpr const IsaTable* kTables[] = {&kRefTable};
#endif

/// A small generator with fixed output on every platform (splitmix64).
struct Random {
  std::uint64_t state;
  std::uint32_t next() {
    state += 0x9E3779B97F4A7C15ULL;
    std::uint64_t z = state;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    return static_cast<std::uint32_t>(z >> 32);
  }
};

std::uint16_t bf16_with_exponent(Random& random, std::uint32_t lowest, std::uint32_t span) {
  const std::uint32_t u = random.next();
  const std::uint32_t exponent = lowest + (u >> 16) % span;
  return static_cast<std::uint16_t>((u & 0x807FU) | (exponent << 7));
}

enum class Corner { kOrdinary, kTinyResults, kOverflow, kSubnormalOperands };
constexpr Corner kCorners[] = {Corner::kOrdinary, Corner::kTinyResults, Corner::kOverflow,
                               Corner::kSubnormalOperands};

/// k = 64: the first half of a row makes the running sum d, the second half meets it.
void fill(Corner corner, Random& random, bool second_half, std::uint16_t* w, std::uint16_t* x) {
  for (int i = 0; i < kBlock; ++i) {
    switch (corner) {
      case Corner::kOrdinary:
        w[i] = bf16_with_exponent(random, 107, 41);
        x[i] = bf16_with_exponent(random, 107, 41);
        break;
      case Corner::kTinyResults: {
        // d = +0 and then: the odd product, which is added first, is +-2^-126 or a little more; the
        // even one has the other sign and is 2^-149 to 2^-153: rounding before or after the flush,
        // to 24 bits or to those of a subnormal, gives other results.
        if (!second_half) {
          w[i] = 0;
          x[i] = 0;
          break;
        }
        const bool odd = i % 2 == 1;
        const std::uint32_t u = random.next();
        const auto sign = static_cast<std::uint16_t>(odd ? (i & 2) << 14 : (~i & 2) << 14);
        const std::uint32_t exponent = odd ? 67 : 52 - u % 5;  // of w; x has 61 or 53
        const std::uint32_t mantissa = (u & 0x100U) != 0 ? 0 : (u >> 9) & 3U;
        w[i] = static_cast<std::uint16_t>((exponent << 7) | mantissa | sign);
        x[i] = static_cast<std::uint16_t>((odd ? 61U : 53U) << 7);
        break;
      }
      case Corner::kOverflow: {  // d around -2^127, then products from 2^128 on
        const std::uint32_t exponent = second_half ? 191 : 190;
        const std::uint16_t sign = second_half ? 0 : 0x8000;
        w[i] = static_cast<std::uint16_t>((random.next() & 0x1FU) | (exponent << 7) | sign);
        x[i] = static_cast<std::uint16_t>((random.next() & 0x1FU) | (191U << 7));
        if (i % 2 == 0) w[i] = 0;
        break;
      }
      case Corner::kSubnormalOperands:
        w[i] = bf16_with_exponent(random, 0, 2);
        x[i] = bf16_with_exponent(random, 126, 100);
        if (i % 4 < 2) std::swap(w[i], x[i]);
        break;
    }
  }
}

struct Check {
  const Kernel* kernel;
  GemmArgs args;
};

void run_check(void* context) {
  const Check& check = *static_cast<Check*>(context);
  check.kernel->run(check.args);
}

void run_kernel(const Kernel& kernel, const std::vector<std::uint16_t>& w,
                const std::vector<std::uint16_t>& x, std::vector<float>& acc) {
  Check check = {&kernel, {}};
  check.args.x = x.data();
  check.args.x_stride = 4 * kBlock;
  check.args.w = reinterpret_cast<const std::uint8_t*>(w.data());
  check.args.w_stride = 4 * kBlock;
  check.args.m = 1;
  check.args.n = static_cast<std::int64_t>(w.size()) / (2 * kBlock);
  check.args.k = 2 * kBlock;
  check.args.acc = acc.data();
  with_fp_state(kernel.fp_state, run_check, &check);
}

}  // namespace

std::span<const IsaTable* const> isa_tables() noexcept { return kTables; }

const IsaTable& table_of(Isa isa) noexcept {
  for (const IsaTable* table : kTables) {
    if (table->isa == isa) return *table;
  }
  return kRefTable;
}

std::optional<Isa> isa_from_name(std::string_view name) noexcept {
  for (const IsaTable* table : kTables) {
    if (name == table->name) return table->isa;
  }
  return std::nullopt;
}

std::optional<std::string> why_not(Isa isa) {
  const IsaTable& table = table_of(isa);
  if (table.isa != isa) return "this build has no kernels for it";
  if ((cpu_bits() & table.cpu_bits) != table.cpu_bits) {
    return isa == Isa::kAvx2 ? "the CPU or operating system lacks AVX2, FMA, F16C or BMI2"
                             : "the CPU or operating system lacks one of AVX-512 F, BW, DQ, VL, "
                               "VBMI, BF16";
  }
  if (isa != Isa::kAvx512bf16) return std::nullopt;
  static const bool keeps_contract = vdpbf16ps_keeps_contract();  // some milliseconds, once
  if (!keeps_contract) {
    return "vdpbf16ps of this CPU does not give the bits of two fused multiply-adds";
  }
  return std::nullopt;
}

const Kernel& select_kernel(Isa isa, Element element, Scales scales, std::int64_t m) noexcept {
  const IsaTable* tables[] = {&table_of(isa), &kRefTable};
  for (const IsaTable* table : tables) {
    for (std::int32_t i = 0; i < table->num_kernels; ++i) {
      const Kernel& kernel = table->kernels[i];
      if (kernel.element == element && kernel.scales == scales &&
          (kernel.max_m == 0 || m <= kernel.max_m)) {
        return kernel;
      }
    }
  }
  return kRefTable.kernels[0];  // not reached: ref has every format
}

bool vdpbf16ps_keeps_contract() noexcept {
  constexpr int kVectors = 4096;
  constexpr int kRows = kVectors / 4;
  const Kernel& tested = select_kernel(Isa::kAvx512bf16, Element::kBf16, Scales::kNone, 1);
  const Kernel& reference = select_kernel(Isa::kRef, Element::kBf16, Scales::kNone, 1);
  Random random = {1};
  std::vector<std::uint16_t> w(static_cast<std::size_t>(kRows) * 2 * kBlock);
  std::vector<std::uint16_t> x(2 * kBlock);
  std::vector<float> got(static_cast<std::size_t>(kRows) * kLanes);
  std::vector<float> expected(got.size());
  for (const Corner corner : kCorners) {
    for (int row = 0; row < kRows; ++row) {
      std::uint16_t* at = w.data() + row * 2 * kBlock;
      fill(corner, random, false, at, x.data());
      fill(corner, random, true, at + kBlock, x.data() + kBlock);
    }
    run_kernel(tested, w, x, got);
    run_kernel(reference, w, x, expected);
    for (std::size_t i = 0; i < got.size(); ++i) {
      const float a = formats::store_f32(got[i]);
      const float b = formats::store_f32(expected[i]);
      const bool zeros = a == 0 && b == 0;  // signs of zeros are compared below, NaNs are equal
      if (formats::bits_of(a) != formats::bits_of(b)) return false;
      if (zeros && formats::bits_of(got[i]) != formats::bits_of(expected[i])) return false;
    }
  }
  return true;
}

}  // namespace deepinfer::kernels
