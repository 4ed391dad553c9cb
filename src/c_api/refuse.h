// How an argument is refused.
#pragma once

#include <string>

#include "deepinfer/error.h"

namespace deepinfer::c_api {

/// Throws Error(kInvalidArgument) "<call>: <name> <what>".
class Refuse {
 public:
  explicit Refuse(const char* call) : call_(call) {}

  [[noreturn]] void operator()(const std::string& name, const std::string& what) const {
    throw Error(ErrorCode::kInvalidArgument, std::string(call_) + ": " + name + " " + what);
  }

  /// The thing behind a pointer that may not be null.
  template <class T>
  T& non_null(const char* name, T* pointer) const {
    if (pointer == nullptr) (*this)(name, "is null");
    return *pointer;
  }

 private:
  const char* call_;
};

}  // namespace deepinfer::c_api
