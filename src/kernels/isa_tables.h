// The tables at the foot of the instruction-set files; registry.cc lists them.
#pragma once

#include "kernels/kernel.h"

namespace deepinfer::kernels {

extern const IsaTable kRefTable;
#if defined(__x86_64__)
extern const IsaTable kAvx2Table;
extern const IsaTable kAvx512Table;
#endif

}  // namespace deepinfer::kernels
