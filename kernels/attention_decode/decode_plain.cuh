#pragma once

#include "kernels/attention_decode/decode_core.cuh"

namespace kvlab::decode {

// q of a row as the second operand of K q^T, for lanes that hold K as `Vector` neighbouring channels per chunk of 4 * Vector channels: lane
// 4 g + t has head g of each tile. T is q's type, P that of the product.
template <class T, class P, int Vector, int Tiles, int D>
__device__ __forceinline__ void load_query(const Args& a, std::int32_t row, std::uint32_t (&q)[Tiles][D / 16][2]) {
  const int g = lane_index() / 4, t = lane_index() % 4;
#pragma unroll
  for (int n = 0; n < Tiles; ++n) {
    const int head = 8 * n + g;
    const T* const from = static_cast<const T*>(a.q) + (static_cast<std::int64_t>(row) * a.group + head) * D + t * Vector;
#pragma unroll
    for (int c = 0; c < D / 8; c += 4) {  // pairs of channels, 4 at a time
      constexpr int kPairs = Vector / 2;
      uint4 x = make_uint4(0, 0, 0, 0);
      if (head < a.group) x = *reinterpret_cast<const uint4*>(from + c / kPairs * 4 * Vector + c % kPairs * 2);
      std::uint32_t pair[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if constexpr (!std::is_same_v<T, P>) {
          const float2 y = unpack<T>(pair[i]);
          pair[i] = pack<P>(y.x, y.y);
        }
        q[n][(c + i) / 2][i % 2] = pair[i];
      }
    }
  }
}

// K and V as numbers of 16 bits, [slots, D].
template <class T, int Tiles, int D>
struct Plain {
  static constexpr int kRow = D / 8;  // vectors of 16 bytes of a token
  static constexpr int kSide = 16 * D * 2, kBytes = 2 * kSide;
  using Operand = T;

  const Args& a;
  const Stretch& at;
  const T* k;
  const T* v;
  std::int32_t slots_shift;  // log2 of a page's tokens
  std::int32_t first_token;  // of unit 0
  float scale;
  std::uint32_t q[Tiles][D / 16][2] = {};

  // Row of product m: see finish().
  static __device__ __forceinline__ int channel(int m, int half) { return 16 * m + 8 * half + lane_index() / 4; }
  // Where vector `column` of token `row` lies in a stage: moved so that eight lanes that read together hit all banks. K is read four
  // columns of two rows at a time, V one column of eight rows.
  static __device__ __forceinline__ int k_place(int row, int column) {
    return 16 * (row * kRow + (kRow % 8 == 0 ? column ^ (row % 2 * 4) : column));
  }
  static __device__ __forceinline__ int v_place(int row, int column) {
    return 16 * (row * kRow + (column ^ (kRow % 8 == 0 ? row % 8 : row / 2 % 4)));
  }

  __device__ __forceinline__ void start() { load_query<T, T, 8, Tiles, D>(a, at.row, q); }

  __device__ __forceinline__ void issue(unsigned char* stage, std::int32_t unit, std::int32_t page) const {
    const std::int32_t token = first_token + unit * 16;
    const std::int64_t slot = (static_cast<std::int64_t>(page) << slots_shift) + (token & ((1 << slots_shift) - 1));
    copy(stage, slot, at.end - token);
  }
  // 16 tokens from a slot on, those from `valid` on as zeros: what lies there may be NaN.
  __device__ __forceinline__ void copy(unsigned char* stage, std::int64_t slot, std::int32_t valid) const {
    const T* const from_k = k + slot * D + lane_index() * 8;
    const T* const from_v = v + slot * D + lane_index() * 8;
#pragma unroll
    for (int i = 0; i < kRow / 2; ++i) {
      const int vector = 32 * i + lane_index(), row = vector / kRow;
      cp_async<16>(stage + k_place(row, vector % kRow), from_k + 256 * i, row < valid);
    }
#pragma unroll
    for (int i = 0; i < kRow / 2; ++i) {
      const int vector = 32 * i + lane_index(), row = vector / kRow;
      cp_async<16>(stage + kSide + v_place(row, vector % kRow), from_v + 256 * i, row < valid);
    }
  }

  __device__ __forceinline__ void use(const unsigned char* stage, std::int32_t unit, State<Tiles, D>& state) const {
    const std::int32_t token = first_token + unit * 16;
    float s[Tiles][4];
    scores(stage, s);
    if (token + 16 > at.end) mask(s, token, at.end);
    if (a.logits != nullptr) keep_logits(a, at, s, scale, token);
    std::uint32_t p[Tiles][2];
    soften<T>(s, scale, state, p);
    add_values(stage + kSide, p, state);
  }

  __device__ __forceinline__ void scores(const unsigned char* stage, float (&s)[Tiles][4]) const {
    const int g = lane_index() / 4, t = lane_index() % 4;
    float odd[Tiles][4];  // two chains of products instead of one twice as long
#pragma unroll
    for (int n = 0; n < Tiles; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) s[n][i] = 0, odd[n][i] = 0;
#pragma unroll
    for (int c = 0; c < D / 32; ++c) {
      const uint4 low = *reinterpret_cast<const uint4*>(stage + k_place(g, 4 * c + t));
      const uint4 high = *reinterpret_cast<const uint4*>(stage + k_place(g + 8, 4 * c + t));
#pragma unroll
      for (int n = 0; n < Tiles; ++n) {
        mma_16x8x16<T>(s[n], {low.x, high.x, low.y, high.y}, q[n][2 * c]);
        mma_16x8x16<T>(odd[n], {low.z, high.z, low.w, high.w}, q[n][2 * c + 1]);
      }
    }
#pragma unroll
    for (int n = 0; n < Tiles; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) s[n][i] += odd[n][i];
  }

  __device__ __forceinline__ void add_values(const unsigned char* stage, const std::uint32_t (&p)[Tiles][2], State<Tiles, D>& state) const {
    const int row = lane_index() % 8 + lane_index() / 16 * 8, column = lane_index() / 8 % 2;
#pragma unroll
    for (int m = 0; m < D / 16; ++m) {
      std::uint32_t x[4];
      ldmatrix_x4_trans(x, stage + v_place(row, 2 * m + column));
#pragma unroll
      for (int n = 0; n < Tiles; ++n) mma_16x8x16<T>(state.out[n][m], x, p[n]);
    }
  }
};

template <class T, int Tiles, int D, class Tuning>
__global__ void __launch_bounds__(Tuning::kThreads, blocks_for<Tuning>(Tiles)) decode_plain(Args a) {
  KVLAB_DYNAMIC_SHARED(unsigned char, shared);
  const Stretch at = stretch_of(a);
  if (at.split >= at.splits) return;
  Plain<T, Tiles, D> units{a, at, static_cast<const T*>(a.kv.k), static_cast<const T*>(a.kv.v), a.units_shift + 4, 0, a.scale};
  State<Tiles, D> state;
  state.clear();
  stream<Tuning>(units, a.kv.page + a.kv.page_begin[at.row], a.units_shift, at.begin / 16, (at.end + 15) / 16, shared, state);
  finish<Plain<T, Tiles, D>, Tuning>(a, at, state, 1.0F, shared);
}

}  // namespace kvlab::decode
