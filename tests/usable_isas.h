// The instruction sets that tests walk.
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "kernels/registry.h"

namespace deepinfer::test {

/// Those of this build that this CPU runs, best first. The others are named loudly, once.
inline const std::vector<Isa>& usable_isas() {
  static const std::vector<Isa> usable = [] {
    std::vector<Isa> out;
    for (const kernels::IsaTable* table : kernels::isa_tables()) {
      if (const auto reason = kernels::why_not(table->isa)) {
        GTEST_LOG_(WARNING) << "NOT TESTED HERE: " << table->name << ": " << *reason;
      } else {
        out.push_back(table->isa);
      }
    }
    return out;
  }();
  return usable;
}

}  // namespace deepinfer::test
