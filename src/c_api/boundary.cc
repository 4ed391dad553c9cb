#include "c_api/boundary.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <new>
#include <string_view>

#include "deepinfer/error.h"
#include "deepinfer/version.h"

namespace deepinfer::c_api {
namespace {

// A fixed size: saying that memory is out must not need any. Longer texts are cut.
constexpr std::size_t kMaxText = 1024;
thread_local std::array<char, kMaxText> error_text = {};

deepinfer_status fail(deepinfer_status status, std::string_view text) noexcept {
  const std::size_t size = std::min(text.size(), kMaxText - 1);
  std::memcpy(error_text.data(), text.data(), size);
  error_text[size] = '\0';
  return status;
}

deepinfer_status status_of(ErrorCode code) noexcept {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return DEEPINFER_INVALID_ARGUMENT;
    case ErrorCode::kBadInput:
      return DEEPINFER_BAD_INPUT;
    case ErrorCode::kUnsupported:
      return DEEPINFER_UNSUPPORTED;
    case ErrorCode::kOutOfMemory:
      return DEEPINFER_OUT_OF_MEMORY;
    case ErrorCode::kIo:
      return DEEPINFER_IO;
  }
  return DEEPINFER_INTERNAL;
}

}  // namespace

const char* last_error() noexcept { return error_text.data(); }

deepinfer_status caught() noexcept {
  try {
    throw;
  } catch (const Error& error) {
    return fail(status_of(error.code()), error.what());
  } catch (const std::bad_alloc&) {
    return fail(DEEPINFER_OUT_OF_MEMORY, "memory could not be had");
  } catch (const std::exception& error) {
    return fail(DEEPINFER_INTERNAL, error.what());
  } catch (...) {
    return fail(DEEPINFER_INTERNAL, "something that is no exception of C++ was thrown");
  }
}

}  // namespace deepinfer::c_api

const char* deepinfer_last_error(void) noexcept { return deepinfer::c_api::last_error(); }

const char* deepinfer_version(void) noexcept { return deepinfer::kVersion; }

int32_t deepinfer_numeric_contract(void) noexcept { return deepinfer::kNumericContract; }
