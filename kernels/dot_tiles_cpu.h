#pragma once

#include <Eigen/Core>
#include <algorithm>
#include <cstdint>

#include "kernels/lanes_cpu.h"
#include "kernels/packets_cpu.h"

// For *_cpu.cpp files only, like Eigen.
namespace kvlab {

// Channels are added in order, fused.
namespace dot_tiles {

constexpr int kKeys = kPacket == 16 ? 8 : 6, kWide = kPacket == 16 ? 3 : 2;  // accumulators fill the vector registers

// From one of three bases: more pointers do not fit the registers.
template <int Keys>
struct KeyRows {
  const float *row0, *row3, *row6;
  std::int64_t stride;
  KeyRows(const float* keys, std::int64_t d)
      : row0(keys), row3(Keys > 3 ? keys + 3 * d : keys), row6(Keys > 6 ? keys + 6 * d : keys), stride(d) {}
  [[nodiscard]] const float* row(int k) const { return k < 3 || k == 4 ? row0 + k * stride : k == 6 ? row6 : row3 + (k - 3) * stride; }
  void advance() { ++row0, ++row3, ++row6; }
};

// Keys [.., channels], rows `stride` floats apart, queries [channels, lanes]. Prefetches keys `ahead` floats later.
struct Tile {
  const float* queries;
  std::int64_t lanes;
  const float* keys;
  std::int64_t stride, channels, ahead;
};

// z [Keys, Wide packets], rows `z_stride` apart, from lane `at` on.
template <int Wide, int Keys>
[[gnu::noinline]] void add_tile(const Tile& t, std::int64_t at, float* z, std::int64_t z_stride) {
  Packet sum[Keys][Wide];
  for (int k = 0; k < Keys; ++k)
    for (int w = 0; w < Wide; ++w) sum[k][w] = load_packet(z + k * z_stride + at + w * kPacket);
  const float* query = t.queries + at;
  for (std::int64_t line = 0; line < t.channels; line += kLanes) {
    for (int k = 0; k < Keys; ++k) __builtin_prefetch(t.keys + k * t.stride + t.ahead + line);
    KeyRows<Keys> rows(t.keys + line, t.stride);
    for (std::int64_t left = std::min(kLanes, t.channels - line); left > 0; --left, rows.advance(), query += t.lanes) {
      Packet q[Wide];
      for (int w = 0; w < Wide; ++w) q[w] = load_packet(query + w * kPacket);
      for (int k = 0; k < Keys; ++k) {
        const Packet key = broadcast(*rows.row(k));
        for (int w = 0; w < Wide; ++w) sum[k][w] = Eigen::internal::pmadd(q[w], key, sum[k][w]);
      }
    }
  }
  for (int k = 0; k < Keys; ++k)
    for (int w = 0; w < Wide; ++w) store_packet(z + k * z_stride + at + w * kPacket, sum[k][w]);
}

template <int Keys>
inline void add_tiles(const Tile& t, float* z, std::int64_t z_stride) {
  std::int64_t at = 0;
  for (; at + kWide * kPacket <= t.lanes; at += kWide * kPacket) add_tile<kWide, Keys>(t, at, z, z_stride);
  if constexpr (kWide > 2) {
    for (; at + 2 * kPacket <= t.lanes; at += 2 * kPacket) add_tile<2, Keys>(t, at, z, z_stride);
  }
  for (; at < t.lanes; at += kPacket) add_tile<1, Keys>(t, at, z, z_stride);
}

}  // namespace dot_tiles

// z [count, lanes] = keys [count, d] times queries [d, lanes]; lanes % kLanes == 0.
inline void fill_dots(const float* queries, std::int64_t lanes, const float* keys, std::int64_t count, std::int64_t d, float* z) {
  using dot_tiles::kKeys;
  std::fill_n(z, count * lanes, 0.0F);
  std::int64_t i = 0;
  for (; i + kKeys <= count; i += kKeys) dot_tiles::add_tiles<kKeys>({queries, lanes, keys + i * d, d, d, kKeys * d}, z + i * lanes, lanes);
  for (; i < count; ++i) dot_tiles::add_tiles<1>({queries, lanes, keys + i * d, d, d, d}, z + i * lanes, lanes);
}

}  // namespace kvlab
