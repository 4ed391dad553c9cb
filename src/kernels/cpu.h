// What this CPU has, the floating-point state, and the self-check of vdpbf16ps.
#pragma once

#include <cstdint>

#include "kernels/kernel.h"

namespace deepinfer::kernels {

/// Sets of CPU features, as bits; an ISA names the one it needs.
constexpr std::uint32_t kCpuAvx2 = 1U;        // AVX2, FMA, F16C, and an OS that saves ymm
constexpr std::uint32_t kCpuAvx512bf16 = 2U;  // AVX-512 F BW DQ VL VBMI BF16, OS saves zmm

/// The sets this CPU and its operating system offer.
std::uint32_t cpu_bits() noexcept;

/// Runs work(context) with MXCSR 0x1F80 (kIeee) or 0x9FC0 (kFlush) and restores the caller's state.
/// Does no arithmetic itself and calls through a pointer: compilers move float arithmetic across
/// the instruction that loads MXCSR.
void with_fp_state(FpState state, void (*work)(void*), void* context) noexcept;

}  // namespace deepinfer::kernels
