#include "checkpoint/safetensors.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "checkpoint/json_scanner.h"
#include "checkpoint/message.h"
#include "deepinfer/error.h"

namespace deepinfer::checkpoint {
namespace {

constexpr std::size_t kLengthBytes = 8;

/// A tensor as its header entry says, before its range is known to lie in the file.
struct Entry {
  std::string name;
  DType dtype = DType::kU8;
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

struct Header {
  std::vector<Entry> entries;
  std::map<std::string, std::string> metadata;
};

[[noreturn]] void refuse(const std::string& file_name, const std::string& fault) {
  throw Error(ErrorCode::kBadInput, printable(file_name, file_name.size()) + ": " + fault);
}

/// The header text; checks the length field against the format and the file.
std::string_view header_text(std::span<const std::byte> file, const std::string& file_name) {
  if (file.size() < kLengthBytes) {
    refuse(file_name,
           "header length of at least 8 bytes expected, " + std::to_string(file.size()) + " found");
  }
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < kLengthBytes; ++i) {
    length |= std::to_integer<std::uint64_t>(file[i]) << (8 * i);
  }
  const std::string given = std::to_string(length);
  if (length > kMaxHeaderBytes) {
    refuse(file_name, "header of at most " + std::to_string(kMaxHeaderBytes) + " bytes expected, " +
                          given + " found: not a safetensors file?");
  }
  const std::uint64_t available = file.size() - kLengthBytes;
  if (length > available) {
    refuse(file_name, "header of " + given + " bytes expected, " + std::to_string(available) +
                          " found (" + count_label(length - available, "byte") +
                          " missing: incomplete download?)");
  }
  if (length < 2) refuse(file_name, "header of at least 2 bytes expected, " + given + " given");
  const auto* text = reinterpret_cast<const char*>(file.data() + kLengthBytes);
  return {text, static_cast<std::size_t>(length)};
}

void read_metadata(JsonScanner& scanner, std::map<std::string, std::string>& metadata) {
  scanner.set_subject("__metadata__");
  scanner.read_object([&](std::string key) {
    const auto [place, is_new] = metadata.try_emplace(std::move(key));
    if (!is_new) scanner.fail("key \"" + printable(place->first) + "\" appears twice");
    place->second = scanner.read_string();
  });
}

void read_offsets(JsonScanner& scanner, Entry& entry) {
  int count = 0;
  scanner.read_array([&] {
    if (count == 2) scanner.fail("two data_offsets expected, more found");
    (count == 0 ? entry.begin : entry.end) = scanner.read_size();
    ++count;
  });
  if (count != 2) {
    scanner.fail("two data_offsets expected, " + std::to_string(count) + " found");
  }
}

Entry read_entry(JsonScanner& scanner, std::string name) {
  constexpr std::string_view kMembers[] = {"dtype", "shape", "data_offsets"};
  Entry entry;
  entry.name = std::move(name);
  scanner.set_subject(tensor_label(entry.name));
  bool seen[3] = {};
  scanner.read_object([&](const std::string& key) {
    const std::size_t member = static_cast<std::size_t>(
        std::find(std::begin(kMembers), std::end(kMembers), key) - std::begin(kMembers));
    if (member == std::size(kMembers)) {
      scanner.fail("member \"dtype\", \"shape\" or \"data_offsets\" expected, \"" + printable(key) +
                   "\" found");
    }
    if (seen[member]) scanner.fail("member \"" + key + "\" appears twice");
    seen[member] = true;
    if (member == 0) {
      const std::string dtype = scanner.read_string();
      const std::optional<DType> known = dtype_from_name(dtype);
      if (!known) scanner.fail("data type \"" + printable(dtype) + "\" is not known");
      entry.dtype = *known;
    } else if (member == 1) {
      scanner.read_array(
          [&] { entry.shape.push_back(static_cast<std::int64_t>(scanner.read_size())); });
    } else {
      read_offsets(scanner, entry);
    }
  });
  for (std::size_t i = 0; i < std::size(kMembers); ++i) {
    if (!seen[i]) scanner.fail("member \"" + std::string(kMembers[i]) + "\" is missing");
  }
  return entry;
}

Header read_header(std::string_view text, const std::string& file_name) {
  JsonScanner scanner(text, printable(file_name, file_name.size()) + ": header");
  // The format wants the brace as the very first byte; a scanner would pass over white space.
  if (text.front() != '{') scanner.fail("'{' expected, " + byte_label(text.front()) + " found");
  Header header;
  bool has_metadata = false;
  scanner.read_object([&](std::string name) {
    if (name == "__metadata__") {
      if (has_metadata) scanner.fail("__metadata__ appears twice");
      has_metadata = true;
      read_metadata(scanner, header.metadata);
    } else {
      header.entries.push_back(read_entry(scanner, std::move(name)));
    }
    scanner.set_subject("");
  });
  const std::size_t rest = text.find_first_not_of(' ', scanner.position());
  if (rest != text.npos) {
    refuse(file_name,
           "only spaces expected after the header, " + byte_label(text[rest]) + " found");
  }
  return header;
}

void check_names(const std::vector<Entry>& entries, const std::string& file_name) {
  std::vector<std::string_view> names;
  names.reserve(entries.size());
  for (const Entry& entry : entries) names.push_back(entry.name);
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice != names.end()) refuse(file_name, tensor_label(*twice) + " appears twice");
}

/// Bytes that the shape takes. Nothing of the result can overflow later: zero dimensions are left
/// out of the overflow check, so that strides of an empty tensor are safe to compute too.
std::uint64_t shape_bytes(const Entry& entry, const std::string& file_name) {
  const auto bits = static_cast<std::uint64_t>(dtype_bits(entry.dtype));
  const auto described = [&] {
    return tensor_label(entry.name) + ": " + std::string(dtype_name(entry.dtype)) + " " +
           printable(shape_string(entry.shape));
  };
  std::uint64_t total_bits = bits;
  bool is_empty = false;
  for (const std::int64_t dim : entry.shape) {
    if (dim == 0) {
      is_empty = true;
    } else if (__builtin_mul_overflow(total_bits, static_cast<std::uint64_t>(dim), &total_bits)) {
      refuse(file_name, described() + ": size below 2^64 bits expected, the product overflows");
    }
  }
  if (is_empty) return 0;
  // Not only the tensor, each row must be whole bytes: of F4 [2, 7] the second row would begin in
  // the middle of a byte, which no kernel and no other reader agree on.
  const std::uint64_t row_bits =
      entry.shape.empty() ? bits : bits * static_cast<std::uint64_t>(entry.shape.back());
  if (row_bits % 8 != 0) {
    refuse(file_name, described() + ": rows of whole bytes expected, rows of " +
                          std::to_string(row_bits) + " bits are not whole bytes");
  }
  return total_bits / 8;
}

void check_size(const Entry& entry, const std::string& file_name) {
  const std::uint64_t expected = shape_bytes(entry, file_name);
  if (entry.end >= entry.begin && entry.end - entry.begin == expected) return;
  std::string message = tensor_label(entry.name) + ": " + std::string(dtype_name(entry.dtype)) +
                        " " + printable(shape_string(entry.shape)) + " with data_offsets [" +
                        std::to_string(entry.begin) + ", " + std::to_string(entry.end) +
                        "]: " + count_label(expected, "byte") + " expected, ";
  if (entry.end < entry.begin) {
    message += "but they end before they begin";
  } else {
    message += std::to_string(entry.end - entry.begin) + " given";
  }
  refuse(file_name, message);
}

/// Tensors must follow each other from byte 0 on. `entries` are sorted by their ranges.
void check_ranges(const std::vector<Entry>& entries, const std::string& file_name) {
  std::uint64_t expected = 0;
  const Entry* previous = nullptr;
  for (const Entry& entry : entries) {
    if (entry.begin != expected) {
      const std::string fault = entry.begin > expected
                                    ? "a hole of " + count_label(entry.begin - expected, "byte")
                                    : "overlaps " + tensor_label(previous->name);
      refuse(file_name, tensor_label(entry.name) + ": begin at byte " + std::to_string(expected) +
                            " expected, " + std::to_string(entry.begin) + " found (" + fault + ")");
    }
    expected = entry.end;
    previous = &entry;
  }
}

/// The data must end with the last tensor.
void check_data_size(const std::vector<Entry>& entries, std::uint64_t data_bytes,
                     const std::string& file_name) {
  const std::uint64_t expected = entries.empty() ? 0 : entries.back().end;
  if (expected == data_bytes) return;
  const std::string sizes =
      count_label(expected, "data byte") + " expected, " + std::to_string(data_bytes) + " found";
  if (data_bytes > expected) {
    refuse(file_name,
           sizes + " (" + count_label(data_bytes - expected, "byte") + " after the last tensor)");
  }
  const auto is_cut = [&](const Entry& entry) {
    return entry.end > data_bytes && entry.end != entry.begin;
  };
  const auto first = std::find_if(entries.begin(), entries.end(), is_cut);
  const auto num_cut = static_cast<std::uint64_t>(std::count_if(first, entries.end(), is_cut));
  refuse(file_name, sizes + ": " + count_label(expected - data_bytes, "byte") +
                        " missing (incomplete download?), " + count_label(num_cut, "tensor") +
                        " cut, first " + tensor_label(first->name));
}

}  // namespace

Safetensors parse_safetensors(std::span<const std::byte> file, const std::string& file_name) {
  const std::string_view text = header_text(file, file_name);
  Header header = read_header(text, file_name);
  std::vector<Entry>& entries = header.entries;
  check_names(entries, file_name);
  for (const Entry& entry : entries) check_size(entry, file_name);
  // Empty tensors have begin == end and must come before the tensor that begins where they do.
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  check_ranges(entries, file_name);
  const std::span<const std::byte> data = file.subspan(kLengthBytes + text.size());
  check_data_size(entries, data.size(), file_name);

  Safetensors result;
  result.metadata = std::move(header.metadata);
  result.tensors.reserve(entries.size());
  for (Entry& entry : entries) {
    result.tensors.push_back({.name = std::move(entry.name),
                              .view = {.data = data.data() + entry.begin,
                                       .size_bytes = entry.end - entry.begin,
                                       .dtype = entry.dtype,
                                       .shape = std::move(entry.shape)}});
  }
  return result;
}

}  // namespace deepinfer::checkpoint
