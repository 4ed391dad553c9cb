#include "kernels/cpu.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <xmmintrin.h>
#endif

namespace deepinfer::kernels {

#if defined(__x86_64__)

namespace {

struct Registers {
  std::uint32_t eax, ebx, ecx, edx;
};

Registers cpuid(std::uint32_t leaf, std::uint32_t subleaf) {
  Registers r = {};
  if (__get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx) == 0) return {};
  return r;
}

bool has(std::uint32_t word, int bit) { return ((word >> bit) & 1U) != 0; }

/// XCR0: which register states the operating system saves (Intel SDM volume 1, chapter 13).
std::uint64_t saved_states() {
  std::uint32_t low = 0;
  std::uint32_t high = 0;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));  // the intrinsic needs -mxsave
  return (static_cast<std::uint64_t>(high) << 32) | low;
}

}  // namespace

std::uint32_t cpu_bits() noexcept {
  const Registers one = cpuid(1, 0);
  const bool osxsave = has(one.ecx, 27);
  if (!osxsave) return 0;
  const std::uint64_t states = saved_states();
  constexpr std::uint64_t kYmm = 0x6;
  constexpr std::uint64_t kZmm = 0xE6;
  const Registers seven = cpuid(7, 0);
  const Registers seven_one = cpuid(7, 1);
  std::uint32_t bits = 0;
  const bool fma = has(one.ecx, 12);
  const bool f16c = has(one.ecx, 29);
  const bool avx2 = has(seven.ebx, 5) && has(seven.ebx, 8);  // AVX2, BMI2
  if (fma && f16c && avx2 && (states & kYmm) == kYmm) bits |= kCpuAvx2;
  const bool f_dq_bw_vl =
      has(seven.ebx, 16) && has(seven.ebx, 17) && has(seven.ebx, 30) && has(seven.ebx, 31);
  const bool vbmi = has(seven.ecx, 1);
  const bool bf16 = has(seven_one.eax, 5);
  if ((bits & kCpuAvx2) != 0 && f_dq_bw_vl && vbmi && bf16 && (states & kZmm) == kZmm) {
    bits |= kCpuAvx512bf16;
  }
  return bits;
}

void with_fp_state(FpState state, void (*work)(void*), void* context) noexcept {
  constexpr unsigned kIeeeMxcsr = 0x1F80;   // all exceptions masked, round to nearest even
  constexpr unsigned kFlushMxcsr = 0x9FC0;  // the same with FTZ and DAZ
  const unsigned before = _mm_getcsr();
  _mm_setcsr(state == FpState::kFlush ? kFlushMxcsr : kIeeeMxcsr);
  work(context);
  _mm_setcsr(before);
}

#else

std::uint32_t cpu_bits() noexcept { return 0; }

void with_fp_state(FpState, void (*work)(void*), void* context) noexcept {
  std::uint64_t before = 0;
#if defined(__aarch64__)
  __asm__ volatile("mrs %0, fpcr" : "=r"(before));
  __asm__ volatile("msr fpcr, %0" : : "r"(std::uint64_t{0}));
#endif
  work(context);
#if defined(__aarch64__)
  __asm__ volatile("msr fpcr, %0" : : "r"(before));
#endif
  static_cast<void>(before);
}

#endif

}  // namespace deepinfer::kernels
