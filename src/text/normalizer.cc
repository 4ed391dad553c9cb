// NFC in its three steps: decompose each character, put runs of combining marks into canonical
// order, compose. utf8proc does the first and the last. Its own ordering swaps neighbours, which is
// quadratic in the length of a run (a megabyte of alternating marks would take minutes), so the
// marks are ordered here, by a stable sort.
#include "text/normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "deepinfer/error.h"
#include "text/utf8.h"

namespace deepinfer::text {
namespace {

constexpr auto kOptions = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);

[[noreturn]] void fail(utf8proc_ssize_t code) {
  throw Error(ErrorCode::kInvalidArgument,
              std::string("text: cannot be normalized: ") + utf8proc_errmsg(code));
}

std::vector<std::int32_t> decompose(std::string_view text) {
  // The longest canonical decomposition of one character has four code points.
  constexpr utf8proc_ssize_t kLongest = 32;
  std::vector<std::int32_t> codes;
  codes.reserve(text.size());
  while (!text.empty()) {
    const std::size_t length = next_utf8(text).length;
    std::int32_t buffer[kLongest];
    int boundclass = 0;
    const utf8proc_ssize_t n =
        utf8proc_decompose_char(static_cast<std::int32_t>(code_point(text, length)), buffer,
                                kLongest, kOptions, &boundclass);
    if (n < 0 || n > kLongest) fail(n);
    codes.insert(codes.end(), buffer, buffer + n);
    text.remove_prefix(length);
  }
  return codes;
}

void order_marks(std::vector<std::int32_t>& codes) {
  const auto mark_class = [](std::int32_t code) {
    return utf8proc_get_property(code)->combining_class;
  };
  const auto is_starter = [&](std::int32_t code) { return mark_class(code) == 0; };
  auto begin = codes.begin();
  while ((begin = std::find_if_not(begin, codes.end(), is_starter)) != codes.end()) {
    const auto end = std::find_if(begin, codes.end(), is_starter);
    std::stable_sort(begin, end,
                     [&](std::int32_t a, std::int32_t b) { return mark_class(a) < mark_class(b); });
    begin = end;
  }
}

}  // namespace

std::string_view to_nfc(std::string_view text, std::string& storage) {
  const auto is_ascii = [](char c) { return static_cast<unsigned char>(c) < 0x80; };
  if (std::all_of(text.begin(), text.end(), is_ascii)) return text;
  std::vector<std::int32_t> codes = decompose(text);
  order_marks(codes);
  const utf8proc_ssize_t n =
      utf8proc_normalize_utf32(codes.data(), static_cast<utf8proc_ssize_t>(codes.size()), kOptions);
  if (n < 0) fail(n);
  storage.clear();
  for (utf8proc_ssize_t i = 0; i < n; ++i) {
    append_utf8(storage, static_cast<char32_t>(codes[static_cast<std::size_t>(i)]));
  }
  return storage;
}

}  // namespace deepinfer::text
