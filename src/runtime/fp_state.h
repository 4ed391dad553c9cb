// Arithmetic in the caller's thread whose bits must not depend on the caller's MXCSR.
#pragma once

#include <exception>
#include <type_traits>
#include <utility>

#include "kernels/cpu.h"

namespace deepinfer {

/// Runs work() in the state of the numeric contract; what it throws is thrown here.
template <class Work>
void in_ieee_state(Work&& work) {
  struct Call {
    std::remove_reference_t<Work>* work;
    std::exception_ptr failure;
  } call = {&work, nullptr};
  const auto run = [](void* context) {
    Call& c = *static_cast<Call*>(context);
    try {
      (*c.work)();
    } catch (...) {
      c.failure = std::current_exception();
    }
  };
  kernels::with_fp_state(kernels::FpState::kIeee, run, &call);
  if (call.failure) std::rethrow_exception(call.failure);
}

}  // namespace deepinfer
