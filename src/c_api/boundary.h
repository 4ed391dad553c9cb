// The border to C: no exception crosses it; what was thrown becomes a status and a text.
#pragma once

#include "deepinfer/deepinfer.h"

namespace deepinfer::c_api {

/// The text of this thread's last failure.
const char* last_error() noexcept;

/// The status of the exception in flight, whose text becomes that of last_error(). To be called
/// inside of a handler.
deepinfer_status caught() noexcept;

/// Runs the body of a C function.
template <class Body>
deepinfer_status guarded(const Body& body) noexcept {
  try {
    body();
    return DEEPINFER_OK;
  } catch (...) {
    return caught();
  }
}

}  // namespace deepinfer::c_api
