// Errors of the public API. Everything that the outside world can cause (files, configurations,
// shapes, missing CPU features) is thrown as deepinfer::Error before anything is changed.
#pragma once

#include <stdexcept>
#include <string>

#include "deepinfer/export.h"

namespace deepinfer {

/// What kind of thing went wrong. The command line maps these to its exit codes.
enum class ErrorCode {
  kInvalidArgument,  ///< the caller passed something that cannot be right (exit 2)
  kBadInput,         ///< a file or its content is missing, damaged or contradictory (exit 3)
  kUnsupported,      ///< valid, but this build, CPU or version cannot do it (exit 4)
  kOutOfMemory,      ///< memory could not be had (exit 5)
  kIo,               ///< output could not be written (exit 1)
};

/// An error with its kind. `what()` is one line: the name of the thing, what was expected, what
/// was found.
class DEEPINFER_API Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}

  ErrorCode code() const noexcept { return code_; }

 private:
  ErrorCode code_;
};

}  // namespace deepinfer
