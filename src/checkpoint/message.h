// Words for error messages. Names and paths come from files, so they are made harmless first: an
// error message is one line of valid UTF-8 of bounded length, whatever the file holds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace deepinfer::checkpoint {

/// Length of the valid UTF-8 sequence that starts at text[pos], or 0 when there is none.
std::size_t utf8_length(std::string_view text, std::size_t pos) noexcept;

/// `text` with control characters and invalid UTF-8 as \xNN, cut after about `max_bytes` bytes.
std::string printable(std::string_view text, std::size_t max_bytes = 160);

/// `'x'`, or `byte 0xff` for what cannot be shown.
std::string byte_label(char c);

/// "1 byte", "2 bytes".
std::string count_label(std::uint64_t count, std::string_view word);

/// `tensor "NAME"`.
std::string tensor_label(std::string_view name);

/// The path, printable. Not cut: a path is of use only when it is whole.
std::string path_label(const std::filesystem::path& path);

}  // namespace deepinfer::checkpoint
