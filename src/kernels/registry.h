// The one list of instruction sets and kernels: dispatch, tests, benches and `deepinfer info`
// walk it.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "kernels/kernel.h"

namespace deepinfer::kernels {

/// All instruction sets of this build, best first; "ref" is the last.
std::span<const IsaTable* const> isa_tables() noexcept;

const IsaTable& table_of(Isa isa) noexcept;

std::optional<Isa> isa_from_name(std::string_view name) noexcept;

/// Why this CPU cannot run an instruction set; nothing when it can.
std::optional<std::string> why_not(Isa isa);

/// The kernel for a call: depends on format, m and instruction set, never on timing or values. An
/// instruction set without a kernel for the format is served by "ref".
const Kernel& select_kernel(Isa isa, Element element, Scales scales, std::int64_t m) noexcept;

/// Compares 4,096 vectors of vdpbf16ps with the two fused multiply-adds of the contract: ordinary
/// ones, results around 2^-126, overflow, and subnormal operands. True when all bits agree.
bool vdpbf16ps_keeps_contract() noexcept;

}  // namespace deepinfer::kernels
