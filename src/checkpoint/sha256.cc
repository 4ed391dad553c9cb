#include "checkpoint/sha256.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <exception>
#include <fstream>
#include <utility>
#include <vector>

#include "checkpoint/message.h"
#include "deepinfer/error.h"

namespace deepinfer::checkpoint {
namespace {

// The first 32 bits of the fractions of the cube roots of the first 64 primes.
constexpr std::uint32_t kRound[64] = {
    0x428A2F98, 0x71374491, 0xB5C0FBCF, 0xE9B5DBA5, 0x3956C25B, 0x59F111F1, 0x923F82A4, 0xAB1C5ED5,
    0xD807AA98, 0x12835B01, 0x243185BE, 0x550C7DC3, 0x72BE5D74, 0x80DEB1FE, 0x9BDC06A7, 0xC19BF174,
    0xE49B69C1, 0xEFBE4786, 0x0FC19DC6, 0x240CA1CC, 0x2DE92C6F, 0x4A7484AA, 0x5CB0A9DC, 0x76F988DA,
    0x983E5152, 0xA831C66D, 0xB00327C8, 0xBF597FC7, 0xC6E00BF3, 0xD5A79147, 0x06CA6351, 0x14292967,
    0x27B70A85, 0x2E1B2138, 0x4D2C6DFC, 0x53380D13, 0x650A7354, 0x766A0ABB, 0x81C2C92E, 0x92722C85,
    0xA2BFE8A1, 0xA81A664B, 0xC24B8B70, 0xC76C51A3, 0xD192E819, 0xD6990624, 0xF40E3585, 0x106AA070,
    0x19A4C116, 0x1E376C08, 0x2748774C, 0x34B0BCB5, 0x391C0CB3, 0x4ED8AA4A, 0x5B9CCA4F, 0x682E6FF3,
    0x748F82EE, 0x78A5636F, 0x84C87814, 0x8CC70208, 0x90BEFFFA, 0xA4506CEB, 0xBEF9A3F7, 0xC67178F2};

std::uint32_t big_endian(const std::byte* at) noexcept {
  std::uint32_t value = 0;
  for (int i = 0; i < 4; ++i) value = value << 8 | std::to_integer<std::uint32_t>(at[i]);
  return value;
}

std::uint32_t sigma(std::uint32_t x, int a, int b, int c) noexcept {
  return std::rotr(x, a) ^ std::rotr(x, b) ^ std::rotr(x, c);
}

std::uint32_t schedule(std::uint32_t x, int a, int b, int shift) noexcept {
  return std::rotr(x, a) ^ std::rotr(x, b) ^ (x >> shift);
}

}  // namespace

void Sha256::add_block(const std::byte* block) noexcept {
  std::uint32_t w[16];  // the last 16 words of the schedule, as a ring
  for (int t = 0; t < 16; ++t) w[t] = big_endian(block + 4 * t);
  std::array<std::uint32_t, 8> s = state_;
  // Eight rounds at a time: the variables a to h of the standard change places by their index, and
  // nothing is moved.
  const auto round = [&](int t, std::uint32_t a, std::uint32_t b, std::uint32_t c, std::uint32_t& d,
                         std::uint32_t e, std::uint32_t f, std::uint32_t g, std::uint32_t& h) {
    if (t >= 16) {
      w[t % 16] += schedule(w[(t + 14) % 16], 17, 19, 10) + w[(t + 9) % 16] +
                   schedule(w[(t + 1) % 16], 7, 18, 3);
    }
    const std::uint32_t choose = g ^ (e & (f ^ g));
    const std::uint32_t majority = (a & b) | (c & (a | b));
    h += sigma(e, 6, 11, 25) + choose + kRound[t] + w[t % 16];
    d += h;
    h += sigma(a, 2, 13, 22) + majority;
  };
  for (int t = 0; t < 64; t += 8) {
    round(t, s[0], s[1], s[2], s[3], s[4], s[5], s[6], s[7]);
    round(t + 1, s[7], s[0], s[1], s[2], s[3], s[4], s[5], s[6]);
    round(t + 2, s[6], s[7], s[0], s[1], s[2], s[3], s[4], s[5]);
    round(t + 3, s[5], s[6], s[7], s[0], s[1], s[2], s[3], s[4]);
    round(t + 4, s[4], s[5], s[6], s[7], s[0], s[1], s[2], s[3]);
    round(t + 5, s[3], s[4], s[5], s[6], s[7], s[0], s[1], s[2]);
    round(t + 6, s[2], s[3], s[4], s[5], s[6], s[7], s[0], s[1]);
    round(t + 7, s[1], s[2], s[3], s[4], s[5], s[6], s[7], s[0]);
  }
  for (std::size_t i = 0; i < state_.size(); ++i) state_[i] += s[i];
}

void Sha256::add(std::span<const std::byte> bytes) noexcept {
  while (!bytes.empty()) {
    const std::size_t used = num_bytes_ % kBlock;
    const std::size_t count = std::min(kBlock - used, bytes.size());
    if (count == kBlock) {
      add_block(bytes.data());
    } else {
      std::memcpy(pending_.data() + used, bytes.data(), count);
      if (used + count == kBlock) add_block(pending_.data());
    }
    num_bytes_ += count;
    bytes = bytes.subspan(count);
  }
}

std::string Sha256::finish() {
  const std::uint64_t num_bits = 8 * num_bytes_;
  const std::byte one{0x80};
  const std::byte zero{0};
  add(std::span(&one, 1));
  while (num_bytes_ % kBlock != kBlock - sizeof(num_bits)) add(std::span(&zero, 1));
  std::array<std::byte, sizeof(num_bits)> length;
  for (std::size_t i = 0; i < length.size(); ++i) {
    length[i] = static_cast<std::byte>((num_bits >> (56 - 8 * i)) & 0xFFU);
  }
  add(length);
  std::string text;
  for (const std::uint32_t word : state_) text += fmt::format("{:08x}", word);
  return text;
}

FileDigest::FileDigest(std::filesystem::path path)
    : thread_([this, file = std::move(path)] {
        try {
          digest_ = digest_of(file);
        } catch (...) {
          failure_ = std::current_exception();
        }
      }) {}

/// Reads, and does not map: mapped pages would count as memory of this process.
std::string FileDigest::digest_of(const std::filesystem::path& path) const {
  constexpr std::size_t kPiece = std::size_t{1} << 20;
  std::vector<char> piece(kPiece);
  std::ifstream file(path, std::ios::binary);
  Sha256 hash;
  while (file && !unwanted_) {
    file.read(piece.data(), static_cast<std::streamsize>(piece.size()));
    hash.add(std::as_bytes(std::span(piece)).first(static_cast<std::size_t>(file.gcount())));
  }
  if (!unwanted_ && !file.eof()) {
    throw Error(ErrorCode::kBadInput, path_label(path) + ": cannot be read");
  }
  return hash.finish();
}

FileDigest::~FileDigest() {
  unwanted_ = true;
  if (thread_.joinable()) thread_.join();
}

std::string FileDigest::get() {
  thread_.join();
  if (failure_) std::rethrow_exception(failure_);
  return digest_;
}

}  // namespace deepinfer::checkpoint
