#pragma once

#include <Eigen/Core>
#include <algorithm>
#include <cstdint>
#include <utility>

#include "kernels/lanes_cpu.h"

// For *_cpu.cpp files only, like Eigen.
namespace kvlab {

using Packet = Eigen::internal::packet_traits<float>::type;
constexpr int kPacket = Eigen::internal::packet_traits<float>::size;
// GCC warns that a template argument loses alignment.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wignored-attributes"
using PacketBlock = Eigen::internal::PacketBlock<Packet, kPacket>;
#pragma GCC diagnostic pop

inline Packet broadcast(float x) { return Eigen::internal::pset1<Packet>(x); }
inline Packet load_packet(const float* x) { return Eigen::internal::ploadu<Packet>(x); }
inline void store_packet(float* x, const Packet& p) { Eigen::internal::pstoreu(x, p); }

namespace packets {

// Upper to lower half of each block of Size lanes; a's blocks first.
template <int Size, std::size_t... Lane>
inline Packet fold(const Packet& a, const Packet& b, std::index_sequence<Lane...> /*lanes*/) {
  constexpr int half = Size / 2;
  const Packet lower = __builtin_shufflevector(a, b, (Lane / half * Size + Lane % half)...);
  const Packet upper = __builtin_shufflevector(a, b, (Lane / half * Size + Lane % half + half)...);
  return Eigen::internal::padd(lower, upper);
}

template <int Size>
inline Packet fold_all(const Packet* p) {
  if constexpr (Size == kPacket * 2) {
    return p[0];
  } else {
    return fold<Size>(fold_all<Size * 2>(p), fold_all<Size * 2>(p + kPacket / Size), std::make_index_sequence<kPacket>());
  }
}

}  // namespace packets

// Bit for bit as Eigen's predux.
template <int Count>
inline void fill_sums_of_lanes(const Packet (&p)[Count], float* sums) {
  int i = 0;
  if constexpr (kPacket > 1) {
    for (; i + kPacket <= Count; i += kPacket) store_packet(sums + i, packets::fold_all<2>(p + i));
  }
  if constexpr (Count % kPacket > kPacket / 2) {
    Packet rest[kPacket];
    for (int k = 0; k < kPacket; ++k) rest[k] = i + k < Count ? p[i + k] : broadcast(0.0F);
    float all[kPacket];
    store_packet(all, packets::fold_all<2>(rest));
    for (int k = 0; i < Count; ++k, ++i) sums[i] = all[k];
  }
  for (; i < Count; ++i) sums[i] = Eigen::internal::predux(p[i]);
}

// to [columns, rows] = from [rows, columns].
inline void transpose(const float* from, std::int64_t rows, std::int64_t columns, std::int64_t from_stride, float* to,
                      std::int64_t to_stride) {
  std::int64_t r = 0;
  if constexpr (kPacket > 1) {
    for (; r + kPacket <= rows; r += kPacket) {
      std::int64_t c = 0;
      for (; c + kPacket <= columns; c += kPacket) {
        PacketBlock block;
        for (int i = 0; i < kPacket; ++i) block.packet[i] = load_packet(from + (r + i) * from_stride + c);
        Eigen::internal::ptranspose(block);
        for (int i = 0; i < kPacket; ++i) store_packet(to + (c + i) * to_stride + r, block.packet[i]);
      }
      for (; c < columns; ++c)
        for (std::int64_t i = r; i < r + kPacket; ++i) to[c * to_stride + i] = from[i * from_stride + c];
    }
  }
  for (; r < rows; ++r)
    for (std::int64_t c = 0; c < columns; ++c) to[c * to_stride + r] = from[r * from_stride + c];
}

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
