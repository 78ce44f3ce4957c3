#pragma once

#include <Eigen/Core>
#include <cstdint>
#include <utility>

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

}  // namespace kvlab
