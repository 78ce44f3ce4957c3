#pragma once

#include <Eigen/Core>
#include <algorithm>
#include <cstdint>

#include "kernels/lanes_cpu.h"
#include "kernels/packets_cpu.h"

// For *_cpu.cpp files alone, like Eigen itself.
namespace kvlab {

// Products of keys with queries that lie side by side in lanes. A key stays as it lies in the cache, row after row, and is read once per
// strip of queries; each product adds up over the channels in order, one fused step per channel, whatever the shapes and addresses.
namespace dot_tiles {

constexpr int kKeys = kPacket == 16 ? 8 : 6, kWide = kPacket == 16 ? 3 : 2;  // accumulators fill the machine's vector registers

// Row k of several that lie `stride` floats apart, as base + 0, 1, 2 or 4 strides of one of three bases: more pointers than these do not
// fit the registers.
template <int Keys>
struct KeyRows {
  const float *row0, *row3, *row6;
  std::int64_t stride;
  KeyRows(const float* keys, std::int64_t d)
      : row0(keys), row3(Keys > 3 ? keys + 3 * d : keys), row6(Keys > 6 ? keys + 6 * d : keys), stride(d) {}
  [[nodiscard]] const float* row(int k) const { return k < 3 || k == 4 ? row0 + k * stride : k == 6 ? row6 : row3 + (k - 3) * stride; }
  void advance() { ++row0, ++row3, ++row6; }
};

template <int Wide, int Keys>
inline void tile(const float* queries, std::int64_t lanes, const float* keys, std::int64_t d, float* z) {
  Packet sum[Keys][Wide];
  for (int k = 0; k < Keys; ++k)
    for (int w = 0; w < Wide; ++w) sum[k][w] = Eigen::internal::pset1<Packet>(0.0F);
  for (std::int64_t line = 0; line < d; line += kLanes) {
    for (int k = 0; k < Keys; ++k) __builtin_prefetch(keys + (Keys + k) * d + line);
    KeyRows<Keys> rows(keys + line, d);
    const float* query = queries + line * lanes;
    for (std::int64_t left = std::min(kLanes, d - line); left > 0; --left, rows.advance(), query += lanes) {
      Packet q[Wide];
      for (int w = 0; w < Wide; ++w) q[w] = load_packet(query + w * kPacket);
      for (int k = 0; k < Keys; ++k) {
        const Packet key = broadcast(*rows.row(k));
        for (int w = 0; w < Wide; ++w) sum[k][w] = Eigen::internal::pmadd(q[w], key, sum[k][w]);
      }
    }
  }
  for (int k = 0; k < Keys; ++k)
    for (int w = 0; w < Wide; ++w) Eigen::internal::pstoreu(z + k * lanes + w * kPacket, sum[k][w]);
}

template <int Keys>
inline void tile_row(const float* queries, std::int64_t lanes, const float* keys, std::int64_t d, float* z) {
  std::int64_t at = 0;
  for (; at + kWide * kPacket <= lanes; at += kWide * kPacket) tile<kWide, Keys>(queries + at, lanes, keys, d, z + at);
  if constexpr (kWide > 2) {
    for (; at + 2 * kPacket <= lanes; at += 2 * kPacket) tile<2, Keys>(queries + at, lanes, keys, d, z + at);
  }
  for (; at < lanes; at += kPacket) tile<1, Keys>(queries + at, lanes, keys, d, z + at);
}

}  // namespace dot_tiles

// z [count, lanes] = keys [count, d] times queries [d, lanes]; lanes is a multiple of kLanes.
inline void fill_dots(const float* queries, std::int64_t lanes, const float* keys, std::int64_t count, std::int64_t d, float* z) {
  std::int64_t i = 0;
  for (; i + dot_tiles::kKeys <= count; i += dot_tiles::kKeys)
    dot_tiles::tile_row<dot_tiles::kKeys>(queries, lanes, keys + i * d, d, z + i * lanes);
  for (; i < count; ++i) dot_tiles::tile_row<1>(queries, lanes, keys + i * d, d, z + i * lanes);
}

}  // namespace kvlab
