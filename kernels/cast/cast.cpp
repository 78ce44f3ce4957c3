#include "kernels/cast/cast.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace kvlab {

OpCall call(const Cast& a) {
  const std::int64_t n = a.tokens.total(), d = a.tokens.kv.head_dim;
  return {"cast", a.tokens.kv.num_rows, n, n, a.tokens.dense_bytes() + a.tokens.list_bytes() + n * d * bytes_of(a.type), n * d};
}

void run_cpu(const Cast& a) {
  const std::int64_t d = a.tokens.kv.head_dim, width = bytes_of(a.type);
  std::fill_n(a.stored, a.tokens.total() * d * width, std::uint8_t{0});
  for (std::int32_t r = 0; r < a.tokens.kv.num_rows; ++r) {
    const std::int32_t tokens = a.tokens.count(r);
    for (std::int32_t i = 0; i < tokens; ++i) {
      float* const x = a.tokens.at(r, i);
      std::uint8_t* const to = a.stored + (a.tokens.first[r] + i) * d * width;
      for (std::int64_t c = 0; c < d; ++c) {
        std::uint32_t bits = to_stored(a.type, x[c]);
        std::memcpy(to + c * width, &bits, static_cast<std::size_t>(width));
        bits = 0;
        std::memcpy(&bits, to + c * width, static_cast<std::size_t>(width));
        x[c] = from_stored(a.type, bits);
      }
    }
  }
}

namespace {

// What each byte stands for, where a number has one.
std::array<float, 256> one_byte_numbers(StoredType type) {
  std::array<float, 256> number{};
  for (std::uint32_t bits = 0; bits < 256; ++bits) number[bits] = from_stored(type, bits);
  return number;
}

// Calls f(stored, x) for each of the listed vectors.
template <class F>
void for_each_stored(const Uncast& a, F&& f) {
  for (std::int32_t r = 0; r < a.tokens.kv.num_rows; ++r) {
    const std::int32_t tokens = a.tokens.count(r);
    for (std::int32_t i = 0; i < tokens; ++i)
      f(a.stored + (a.tokens.first[r] + i) * a.tokens.kv.head_dim * bytes_of(a.type), a.tokens.at(r, i));
  }
}

template <class Stored>
void uncast(const Uncast& a) {
  const std::int64_t d = a.tokens.kv.head_dim;
  for_each_stored(a, [&](const std::uint8_t* from, float* x) {
    for (std::int64_t c = 0; c < d; ++c) {
      Stored bits = 0;
      std::memcpy(&bits, from + c * std::int64_t{sizeof(Stored)}, sizeof(Stored));
      x[c] = from_stored(a.type, bits);
    }
  });
}

}  // namespace

void run_cpu(const Uncast& a) {
  const std::int64_t d = a.tokens.kv.head_dim;
  if (bytes_of(a.type) == 4) return uncast<std::uint32_t>(a);
  if (bytes_of(a.type) == 2) return uncast<std::uint16_t>(a);
  const std::array<float, 256> number = one_byte_numbers(a.type);
  for_each_stored(a, [&](const std::uint8_t* from, float* x) {
    for (std::int64_t c = 0; c < d; ++c) x[c] = number[from[c]];
  });
}

}  // namespace kvlab
