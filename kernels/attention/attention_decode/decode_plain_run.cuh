#pragma once

#include "kernels/attention/attention_decode/decode_core.cuh"
#include "kernels/attention/attention_decode/decode_finish.cuh"
#include "kernels/attention/attention_decode/decode_plain.cuh"

namespace kvlab::decode {

// 16-bit K and V, [slots, D], in operand registers: lane 4 g + t has 8 of every 32 channels of K of tokens g, g + 8, 8 of every 64 of V of
// tokens 2t, 2t + 1, 2t + 8, 2t + 9.
template <class T, int Tiles, int D>
struct Direct {
  const Args& a;
  const Stretch& at;
  std::int32_t slots_shift;
  std::uint32_t q[Tiles][D / 16][2] = {};
  uint4 k[2][D / 32] = {}, v[4][D / 64] = {};

  static __device__ __forceinline__ int channel(int m, int half) { return 64 * (m / 4) + 8 * (lane_index() / 4) + 2 * (m % 4) + half; }

  __device__ __forceinline__ std::int64_t slot(std::int32_t token, std::int32_t page) const {
    return (static_cast<std::int64_t>(page) << slots_shift) + (token & ((1 << slots_shift) - 1));
  }
  static __device__ __forceinline__ uint4 load(const T* from, bool valid) { return valid ? load_streaming(from) : make_uint4(0, 0, 0, 0); }

  // Zeros from at.end on.
  __device__ __forceinline__ void load_keys(std::int32_t token, std::int32_t page) {
    const int g = lane_index() / 4, t = lane_index() % 4;
    const T* const from = static_cast<const T*>(a.kv.k) + (slot(token, page) + g) * D + 8 * t;
#pragma unroll
    for (int c = 0; c < D / 32; ++c)
#pragma unroll
      for (int i = 0; i < 2; ++i) k[i][c] = load(from + 8 * i * D + 32 * c, token + g + 8 * i < at.end);
  }
  __device__ __forceinline__ void load_values(std::int32_t token, std::int32_t page) {
    const int g = lane_index() / 4, t = lane_index() % 4;
    const T* const from = static_cast<const T*>(a.kv.v) + (slot(token, page) + 2 * t) * D + 8 * g;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = i / 2 * 8 + i % 2;
#pragma unroll
      for (int c = 0; c < D / 64; ++c) v[i][c] = load(from + row * D + 64 * c, token + 2 * t + row < at.end);
    }
  }

  // Added to s.
  __device__ __forceinline__ void scores(float (&s)[Tiles][4]) const {
    float odd[Tiles][4] = {};
#pragma unroll
    for (int c = 0; c < D / 32; ++c) {
      const uint4 x = k[0][c], y = k[1][c];
#pragma unroll
      for (int n = 0; n < Tiles; ++n) {
        mma_16x8x16<T>(s[n], {x.x, y.x, x.y, y.y}, q[n][2 * c]);
        mma_16x8x16<T>(odd[n], {x.z, y.z, x.w, y.w}, q[n][2 * c + 1]);
      }
    }
#pragma unroll
    for (int n = 0; n < Tiles; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) s[n][i] += odd[n][i];
  }

  __device__ __forceinline__ void add_values(const std::uint32_t (&p)[Tiles][2], State<Tiles, D>& state) const {
#pragma unroll
    for (int c = 0; c < D / 64; ++c) {
      const std::uint32_t x[4][4] = {{v[0][c].x, v[0][c].y, v[0][c].z, v[0][c].w},
                                     {v[1][c].x, v[1][c].y, v[1][c].z, v[1][c].w},
                                     {v[2][c].x, v[2][c].y, v[2][c].z, v[2][c].w},
                                     {v[3][c].x, v[3][c].y, v[3][c].z, v[3][c].w}};
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        const std::uint32_t pairs[4] = {__byte_perm(x[0][w], x[1][w], 0x5410), __byte_perm(x[0][w], x[1][w], 0x7632),
                                        __byte_perm(x[2][w], x[3][w], 0x5410), __byte_perm(x[2][w], x[3][w], 0x7632)};
#pragma unroll
        for (int n = 0; n < Tiles; ++n) mma_16x8x16<T>(state.out[n][4 * c + w], pairs, p[n]);
      }
    }
  }
};

template <class T, int Tiles, int D, class Tuning>
__global__ void __launch_bounds__(Tuning::kThreads, blocks_for(Tuning::kBlocks, 8 * Tiles)) decode_direct(Args a) {
  KVLAB_DYNAMIC_SHARED(unsigned char, shared);
  using Units = Direct<T, Tiles, D>;
  constexpr std::int32_t kStep = 16 * Tuning::kWarps;  // tokens between a warp's units
  const Stretch at = stretch_of(a);
  if (at.split >= at.splits) return;
  State<Tiles, D> state;
  std::int32_t token = at.begin + 16 * warp_index();
  const std::int32_t count = token < at.end ? (at.end - token + kStep - 1) / kStep : 0;
  if (count > 0) {
    Units units{a, at, a.units_shift + 4};
    PagesAhead<Tuning::kWarps> ahead(at.pages, token / 16, count, a.units_shift);
    std::int32_t page = ahead.at(0);
    units.load_keys(token, page);
    units.load_values(token, page);
    load_query<T, T, 8, Tiles, D>(a, at.row, units.q);
    for (std::int32_t i = 0; i < count; ++i, token += kStep) {
      float s[Tiles][4] = {};
      std::uint32_t p[Tiles][2];
      units.scores(s);
      if (i + 1 < count) {
        page = ahead.at(i + 1);
        units.load_keys(token + kStep, page);
      }
      if (token + 16 > at.end) mask(s, token, at.end);
      if (a.logits != nullptr) keep_logits(a, at, s, a.scale, token);
      soften<T>(s, a.scale, state, p);
      units.add_values(p, state);
      if (i + 1 < count) units.load_values(token + kStep, page);
    }
  }
  finish<Units, Tuning>(a, at, state, 1.0F, shared);
}

// Both types have the same tunings; without stages: direct.
template <class T>
void run_plain(const Args& a, const DecodePlan& plan, CudaContext& cuda) {
  for_tuning<KvFormat::kF16, 64, 96, 128, 256>(a, plan, [&](auto d, auto tuning) {
    using Tuning = decltype(tuning);
    constexpr int kD = decltype(d)::value;
    if constexpr (Tuning::kStages == 0)
      launch_tuned("decode_direct", a, plan, cuda, Tuning::kThreads, decode_direct<T, 1, kD, Tuning>, decode_direct<T, 2, kD, Tuning>);
    else
      launch_tuned("decode_plain", a, plan, cuda, Tuning::kThreads, decode_plain<T, 1, kD, Tuning>, decode_plain<T, 2, kD, Tuning>);
  });
}

}  // namespace kvlab::decode
