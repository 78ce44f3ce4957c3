#pragma once

#include "kernels/attention/attention_decode/decode_finish.cuh"

namespace kvlab::decode {

// K and V as 16-bit numbers, [slots, D].
template <class T, int Tiles, int D>
struct Plain {
  static constexpr int kRow = D / 8;
  static constexpr int kSide = 16 * D * 2, kBytes = 2 * kSide;

  const Args& a;
  const Stretch& at;
  const T* k;
  const T* v;
  std::int32_t slots_shift;  // log2 of a page's tokens
  float scale;
  std::uint32_t q[Tiles][D / 16][2] = {};

  // See finish().
  static __device__ __forceinline__ int channel(int m, int half) { return 16 * m + 8 * half + lane_index() / 4; }

  // A column of eight rows hits all banks.
  static constexpr int kMoved = kRow % 8 == 0 ? 7 : 3;  // column bits that depend on the row
  static __device__ __forceinline__ SharedPlace place(int row, int column) {
    const int moves = kRow % 8 == 0 ? row % 8 : row / 2 % 4;
    return 16 * (row * kRow + (column & ~kMoved) + ((column & kMoved) ^ moves));
  }
  // `columns` (even) further, from column 0 or 1.
  static __device__ __forceinline__ SharedPlace further(SharedPlace place, int columns) {
    return (place ^ static_cast<SharedPlace>(16 * (columns & kMoved))) + 16 * (columns & ~kMoved);
  }

  __device__ __forceinline__ void start() { load_query<T, T, 2, Tiles, D>(a, at.row, q); }

  __device__ __forceinline__ void issue(SharedPlace stage, std::int32_t unit, std::int32_t page) const {
    const std::int32_t token = unit * 16;
    copy(stage, (static_cast<std::int64_t>(page) << slots_shift) + (token & ((1 << slots_shift) - 1)), at.end - token);
  }
  // Zeros from `valid` on: unused slots may hold NaN.
  __device__ __forceinline__ void copy(SharedPlace stage, std::int64_t slot, std::int32_t valid) const {
    const T* const from_k = k + slot * D + lane_index() * 8;
    const T* const from_v = v + slot * D + lane_index() * 8;
    if (valid >= 16) {
      copy_side(stage, from_k, 16);
      copy_side(stage + kSide, from_v, 16);
    } else {
      copy_side(stage, from_k, valid);
      copy_side(stage + kSide, from_v, valid);
    }
  }
  static __device__ __forceinline__ void copy_side(SharedPlace stage, const T* from, std::int32_t valid) {
    constexpr int kRows = 32 / kRow;  // per copy; 0: less than one
    const SharedPlace first = stage + place(lane_index() / kRow, lane_index() % kRow);
#pragma unroll
    for (int i = 0; i < kRow / 2; ++i) {
      const int vector = 32 * i + lane_index(), row = vector / kRow;
      SharedPlace to = stage + place(row, vector % kRow);
      if constexpr (kRow % 8 == 0 && kRows * kRow == 32) to = (first ^ static_cast<SharedPlace>(kRows * i % 8 * 16)) + 512 * i;
      cp_async16(to, from + 256 * i, row < valid);
    }
  }

  __device__ __forceinline__ void use(SharedPlace stage, std::int32_t unit, State<Tiles, D>& state) const {
    std::uint32_t p[Tiles][2];
    probabilities(stage, unit * 16, state, p);
    add_values(stage + kSide, p, state);
  }
  __device__ __forceinline__ void probabilities(SharedPlace stage, std::int32_t token, State<Tiles, D>& state,
                                                std::uint32_t (&p)[Tiles][2]) const {
    float s[Tiles][4] = {};
    scores(stage, s);
    if (token + 16 > at.end) mask(s, token, at.end);
    if (a.logits != nullptr) keep_logits(a, at, s, scale, token);
    soften<T>(s, scale, state, p);
  }

  // Added to s.
  __device__ __forceinline__ void scores(SharedPlace stage, float (&s)[Tiles][4]) const {
    float odd[Tiles][4] = {};  // two shorter chains
    const SharedPlace first = stage + place(lane_index() % 16, lane_index() / 16);
#pragma unroll
    for (int m = 0; m < D / 16; ++m) {
      std::uint32_t x[4];
      ldmatrix_x4(x, further(first, 2 * m));
#pragma unroll
      for (int n = 0; n < Tiles; ++n) mma_16x8x16<T>(m % 2 == 0 ? s[n] : odd[n], x, q[n][m]);
    }
#pragma unroll
    for (int n = 0; n < Tiles; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) s[n][i] += odd[n][i];
  }

  __device__ __forceinline__ void add_values(SharedPlace stage, const std::uint32_t (&p)[Tiles][2], State<Tiles, D>& state) const {
    const SharedPlace first = stage + place(lane_index() % 8 + lane_index() / 16 * 8, lane_index() / 8 % 2);
#pragma unroll
    for (int m = 0; m < D / 16; ++m) {
      std::uint32_t x[4];
      ldmatrix_x4_trans(x, further(first, 2 * m));
#pragma unroll
      for (int n = 0; n < Tiles; ++n) mma_16x8x16<T>(state.out[n][m], x, p[n]);
    }
  }
};

template <class T, int Tiles, int D, class Tuning>
__global__ void __launch_bounds__(Tuning::kThreads, blocks_for(Tuning::kBlocks, 8 * Tiles)) decode_plain(Args a) {
  KVLAB_DYNAMIC_SHARED(unsigned char, shared);
  const Stretch at = stretch_of(a);
  if (at.split >= at.splits) return;
  Plain<T, Tiles, D> units{a, at, static_cast<const T*>(a.kv.k), static_cast<const T*>(a.kv.v), a.units_shift + 4, a.scale};
  State<Tiles, D> state;
  stream<Tuning>(units, at.pages, a.units_shift, at.begin / 16, (at.end + 15) / 16, own_stages<Tuning, Plain<T, Tiles, D>>(shared), state);
  finish<Plain<T, Tiles, D>, Tuning>(a, at, state, 1.0F, shared);
}

}  // namespace kvlab::decode
