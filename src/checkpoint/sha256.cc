#include "checkpoint/sha256.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <exception>
#include <utility>

#include "checkpoint/mapped_file.h"

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
  std::uint32_t w[64];
  for (int t = 0; t < 16; ++t) w[t] = big_endian(block + 4 * t);
  for (int t = 16; t < 64; ++t) {
    w[t] = schedule(w[t - 2], 17, 19, 10) + w[t - 7] + schedule(w[t - 15], 7, 18, 3) + w[t - 16];
  }
  auto [a, b, c, d, e, f, g, h] = state_;
  for (int t = 0; t < 64; ++t) {
    const std::uint32_t choose = (e & f) ^ (~e & g);
    const std::uint32_t majority = (a & b) ^ (a & c) ^ (b & c);
    const std::uint32_t t1 = h + sigma(e, 6, 11, 25) + choose + kRound[t] + w[t];
    const std::uint32_t t2 = sigma(a, 2, 13, 22) + majority;
    h = g;
    g = f;
    f = e;
    e = d + t1;
    d = c;
    c = b;
    b = a;
    a = t1 + t2;
  }
  const std::uint32_t sums[8] = {a, b, c, d, e, f, g, h};
  for (std::size_t i = 0; i < state_.size(); ++i) state_[i] += sums[i];
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
          const MappedFile mapping = MappedFile::open(file);
          std::span<const std::byte> rest = mapping.bytes();
          constexpr std::size_t kPiece = std::size_t{1} << 20;
          Sha256 hash;
          while (!rest.empty() && !unwanted_) {
            const std::size_t count = std::min(kPiece, rest.size());
            hash.add(rest.first(count));
            rest = rest.subspan(count);
          }
          digest_ = hash.finish();
        } catch (...) {
          failure_ = std::current_exception();
        }
      }) {}

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
