// Unicode normalization form C, the only normalizer of byte-level BPE models in use.
#pragma once

#include <string>
#include <string_view>

namespace deepinfer::text {

/// `text` (well-formed UTF-8) in NFC: `text` itself where it is ASCII, else a copy, which is kept
/// in `storage`.
std::string_view to_nfc(std::string_view text, std::string& storage);

}  // namespace deepinfer::text
