#pragma once

#include "kernels/attention/attention_decode/decode_core.cuh"
#include "kernels/attention/attention_decode/decode_plain.cuh"

namespace kvlab::decode {

// Code `i` of each half-word as exact fp16, from 1024 + code * 2^p by one multiply-add.
template <int Bits>
__device__ __forceinline__ std::uint32_t code_pair(std::uint32_t word, int i) {
  constexpr int kInPlace = Bits == 4 ? 2 : 5;  // codes in a 10-bit fraction without a shift
  const std::uint32_t shifted = i < kInPlace ? word : word >> kInPlace * Bits;
  const int p = i % kInPlace * Bits;
  const std::uint32_t code_mask = (1U << Bits) - 1U, factor = static_cast<std::uint32_t>(15 - p) << 10;
  const std::uint32_t offset = 0x8000U | static_cast<std::uint32_t>(25 - p) << 10;
  return fma2<f16>(and_or(shifted, code_mask * 0x10001U << p, 0x64006400U), factor * 0x10001U, offset * 0x10001U);
}

// A unit is a page of codes, K then V, with scales and zeros. Products in fp16.
template <KvFormat Format, int Tiles, int D>
struct Codes {
  static constexpr int kBits = bits_of(Format), kPerHalf = 16 / kBits;
  static constexpr bool kByChannel = is_kivi(Format);  // K
  static constexpr int kTokens = fixed_page_tokens(Format), kGroups = D / group_channels(Format, D);
  static constexpr int kSide = static_cast<int>(page_bytes(Format, D, kTokens)), kBytes = 2 * kSide;
  static constexpr int kCodes = kTokens * D * kBits / 8;
  static constexpr int kWords = D * kBits / 64, kWidth = kWords < 4 ? kWords : 4;  // per lane and tile

  const Args& a;
  const Stretch& at;
  float scale;
  std::uint32_t q[Tiles][D / 16][2] = {};

  static __device__ __forceinline__ int channel(int m, int half) { return lane_index() / 4 * (D / 8) + 2 * m + half; }

  __device__ __forceinline__ void start() {
    if (a.kv.type == ElementType::kF16)
      load_query<f16, f16, D / 4, Tiles, D>(a, at.row, q);
    else
      load_query<bf16, f16, D / 4, Tiles, D>(a, at.row, q);
  }

  __device__ __forceinline__ void issue(SharedPlace stage, std::int32_t, std::int32_t page) const {
    const std::int64_t begin = static_cast<std::int64_t>(page) * kSide + 16 * lane_index();
    const auto* const from_k = static_cast<const unsigned char*>(a.kv.k) + begin;
    const auto* const from_v = static_cast<const unsigned char*>(a.kv.v) + begin;
    const SharedPlace to = stage + 16 * lane_index();
#pragma unroll
    for (int i = 0; i < kSide; i += 512) {
      if (i + 512 > kSide && i + 16 * lane_index() >= kSide) break;
      cp_async16(to + i, from_k + i);
      cp_async16(to + kSide + i, from_v + i);
    }
  }

  static __device__ __forceinline__ void load_words(SharedPlace side, int tile, std::uint32_t (&x)[kWords]) {
    const SharedPlace from = side + tile * (128 * kWords) + lane_index() * (4 * kWidth);
    if constexpr (kWords == 2) {
      const uint2 y = load_shared8(from);
      x[0] = y.x, x[1] = y.y;
    } else {
#pragma unroll
      for (int i = 0; i < kWords / 4; ++i) {
        const uint4 y = load_shared16(from + 512 * i);
        x[4 * i] = y.x, x[4 * i + 1] = y.y, x[4 * i + 2] = y.z, x[4 * i + 3] = y.w;
      }
    }
  }

  __device__ __forceinline__ void use(SharedPlace stage, std::int32_t unit, State<Tiles, D>& state) const {
    if constexpr (kByChannel) {
      std::uint32_t scaled[Tiles][D / 16][2];
      float bias[Tiles][4] = {};
      scale_query(stage + kCodes, scaled, bias);
#pragma unroll 1
      for (int tile = 0; tile < kTokens / 16; ++tile) use_tile(stage, unit, tile, scaled, bias, state);
    } else {
      const float bias[Tiles][4] = {};
      const int tiles = min(kTokens / 16, (at.end - unit * kTokens + 15) / 16);
#pragma unroll 1
      for (int tile = 0; tile < tiles; ++tile) use_tile(stage, unit, tile, q, bias, state);
    }
  }

  // k = zero + scale code: q.k = q.zero + (q scale).code; q.zero is common to the page.
  __device__ __forceinline__ void scale_query(SharedPlace scales, std::uint32_t (&scaled)[Tiles][D / 16][2],
                                              float (&bias)[Tiles][4]) const {
    const SharedPlace own = scales + lane_index() % 4 * (D / 2);
#pragma unroll
    for (int i = 0; i < D / 32; ++i) {
      const uint4 s = load_shared16(own + 16 * i), z = load_shared16(own + 2 * D + 16 * i);
#pragma unroll
      for (int n = 0; n < Tiles; ++n) {
        scaled[n][2 * i][0] = fma2<f16>(q[n][2 * i][0], s.x, 0x80008000U);
        scaled[n][2 * i][1] = fma2<f16>(q[n][2 * i][1], s.y, 0x80008000U);
        scaled[n][2 * i + 1][0] = fma2<f16>(q[n][2 * i + 1][0], s.z, 0x80008000U);
        scaled[n][2 * i + 1][1] = fma2<f16>(q[n][2 * i + 1][1], s.w, 0x80008000U);
        mma_16x8x16<f16>(bias[n], {z.x, z.x, z.y, z.y}, q[n][2 * i]);
        mma_16x8x16<f16>(bias[n], {z.z, z.z, z.w, z.w}, q[n][2 * i + 1]);
      }
    }
  }

  __device__ __forceinline__ void use_tile(SharedPlace stage, std::int32_t unit, int tile, const std::uint32_t (&query)[Tiles][D / 16][2],
                                           const float (&bias)[Tiles][4], State<Tiles, D>& state) const {
    const std::int32_t token = unit * kTokens + tile * 16;
    float s[Tiles][4];
    scores(stage, tile, query, bias, s);
    if (!kByChannel && token + 16 > at.end) mask(s, token, at.end);
    if (a.logits != nullptr) keep_logits(a, at, s, scale, token);
    std::uint32_t p[Tiles][2];
    soften<f16>(s, scale, state, p);
    add_values(stage + kSide, tile, token, p, state);
  }

  __device__ __forceinline__ void scores(SharedPlace side, int tile, const std::uint32_t (&query)[Tiles][D / 16][2],
                                         const float (&bias)[Tiles][4], float (&s)[Tiles][4]) const {
    std::uint32_t x[kWords], scales[2] = {0, 0}, zeros[2] = {0, 0};  // tokens g and g + 8
    load_words(side, tile, x);
    if constexpr (!kByChannel) {
      const int g = lane_index() / 4, group = lane_index() % 4 * kGroups / 4;
      const uint2 y = load_shared8(side + kCodes + ((tile * kGroups + group) * 8 + g) * 8);
      scales[0] = __byte_perm(y.x, y.x, 0x1010), scales[1] = __byte_perm(y.x, y.x, 0x3232);
      zeros[0] = __byte_perm(y.y, y.y, 0x1010), zeros[1] = __byte_perm(y.y, y.y, 0x3232);
    }
    float odd[Tiles][4];
#pragma unroll
    for (int n = 0; n < Tiles; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) s[n][i] = bias[n][i], odd[n][i] = 0;
#pragma unroll
    for (int w = 0; w < kWords / 2; ++w)
#pragma unroll
      for (int i = 0; i < kPerHalf; i += 2) {
        std::uint32_t k[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          k[j] = code_pair<kBits>(x[j % 2 * (kWords / 2) + w], i + j / 2);
          if constexpr (!kByChannel) k[j] = fma2<f16>(k[j], scales[j % 2], zeros[j % 2]);
        }
        const int m = (w * kPerHalf + i) / 2;
#pragma unroll
        for (int n = 0; n < Tiles; ++n) mma_16x8x16<f16>(m % 2 == 0 ? s[n] : odd[n], k, query[n][m]);
      }
#pragma unroll
    for (int n = 0; n < Tiles; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) s[n][i] += odd[n][i];
  }

  __device__ __forceinline__ void add_values(SharedPlace side, int tile, std::int32_t token, const std::uint32_t (&p)[Tiles][2],
                                             State<Tiles, D>& state) const {
    const int t = lane_index() % 4, group = lane_index() / 4 * kGroups / 8;
    std::uint32_t x[kWords];
    load_words(side, tile, x);
    const uint4 y = load_shared16(side + kCodes + ((tile * kGroups + group) * 4 + t) * 16);
    std::uint32_t scales[2] = {y.x, y.y}, zeros[2] = {y.z, y.w};  // tokens 2t, 2t + 1 and 2t + 8, 2t + 9
    if (!kByChannel && token + 16 > at.end) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const std::int32_t valid = at.end - (token + 2 * t + 8 * i);
        scales[i] = kept_halves(scales[i], valid), zeros[i] = kept_halves(zeros[i], valid);
      }
    }
#pragma unroll
    for (int w = 0; w < kWords / 2; ++w)
#pragma unroll
      for (int i = 0; i < kPerHalf; i += 2) {
        std::uint32_t v[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) v[j] = fma2<f16>(code_pair<kBits>(x[j / 2 * (kWords / 2) + w], i + j % 2), scales[j / 2], zeros[j / 2]);
#pragma unroll
        for (int n = 0; n < Tiles; ++n) mma_16x8x16<f16>(state.out[n][(w * kPerHalf + i) / 2], v, p[n]);
      }
  }
};

// The ring of newest tokens, with lanes as in Codes, which ldmatrix cannot give.
template <class T, int Tiles, int D>
struct Window : Plain<T, Tiles, D> {
  using Base = Plain<T, Tiles, D>;
  std::int32_t capacity = 0;

  __device__ __forceinline__ void issue(SharedPlace stage, std::int32_t unit, std::int32_t) const {
    const std::int32_t token = unit * 16;
    this->copy(stage, token % capacity, this->at.end - token);
  }
  __device__ __forceinline__ void use(SharedPlace stage, std::int32_t unit, State<Tiles, D>& state) const {
    std::uint32_t p[Tiles][2];
    this->probabilities(stage, unit * 16, state, p);
    const int g = lane_index() / 4, t = lane_index() % 4;
#pragma unroll
    for (int c = 0; c < D / 64; ++c) {  // 8 channels of tokens 2t, 2t + 1, 2t + 8, 2t + 9
      std::uint32_t x[4][4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint4 y = load_shared16(stage + Base::kSide + Base::place(2 * t + i / 2 * 8 + i % 2, g * (D / 64) + c));
        x[i][0] = y.x, x[i][1] = y.y, x[i][2] = y.z, x[i][3] = y.w;
      }
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        const std::uint32_t v[4] = {__byte_perm(x[0][w], x[1][w], 0x5410), __byte_perm(x[0][w], x[1][w], 0x7632),
                                    __byte_perm(x[2][w], x[3][w], 0x5410), __byte_perm(x[2][w], x[3][w], 0x7632)};
#pragma unroll
        for (int n = 0; n < Tiles; ++n) mma_16x8x16<T>(state.out[n][4 * c + w], v, p[n]);
      }
    }
  }
};

template <class T, class Tuning, KvFormat Format, int Tiles, int D>
__device__ __forceinline__ void add_window(const Args& a, const Stretch& at, std::int32_t packed, SharedPlace own, State<Tiles, D>& state) {
  const std::int32_t capacity = residual_capacity(Format, a.kv.residual);
  const std::int64_t begin = static_cast<std::int64_t>(a.kv.window != nullptr ? a.kv.window[at.row] : at.row) * capacity * D;
  Window<T, Tiles, D> units{{a, at, static_cast<const T*>(a.kv.window_k) + begin, static_cast<const T*>(a.kv.window_v) + begin, 0, a.scale},
                            capacity};
  // A ring has no pages: 31 is arbitrary.
  stream<Tune<Tuning::kWarps, 2, 1>>(units, a.kv.len, 31, max(at.begin, packed) / 16, (at.end + 15) / 16, own, state);
}

template <KvFormat Format, int Tiles, int D, class Tuning>
__global__ void __launch_bounds__(Tuning::kThreads, blocks_for(Tuning::kBlocks, 8 * Tiles)) decode_codes(Args a) {
  KVLAB_DYNAMIC_SHARED(unsigned char, shared);
  using Units = Codes<Format, Tiles, D>;
  static_assert(!is_kivi(Format) || Tuning::kStages * Units::kBytes >= 2 * Plain<f16, Tiles, D>::kBytes, "stages of the window fit");
  const Stretch at = stretch_of(a);
  if (at.split >= at.splits) return;
  Units units{a, at, a.scale};
  State<Tiles, D> state;
  const SharedPlace own = own_stages<Tuning, Units>(shared);
  const std::int32_t packed = is_kivi(Format) ? kivi_packed(Format, at.len, a.kv.residual) : at.len;
  stream<Tuning>(units, at.pages, 0, at.begin / Units::kTokens, (min(at.end, packed) + Units::kTokens - 1) / Units::kTokens, own, state);
  if constexpr (is_kivi(Format)) {
    if (at.end > packed) {
      if (a.kv.type == ElementType::kF16)
        add_window<f16, Tuning, Format>(a, at, packed, own, state);
      else
        add_window<bf16, Tuning, Format>(a, at, packed, own, state);
    }
  }
  finish<Units, Tuning>(a, at, state, 1.0F, shared);
}

template <KvFormat Format>
void run_codes(const Args& a, const DecodePlan& plan, CudaContext& cuda) {
  for_tuning<Format, 64, 128, 256>(a, plan, [&](auto d, auto tuning) {
    using Tuning = decltype(tuning);
    constexpr int kD = decltype(d)::value;
    launch_tuned("decode_codes", a, plan, cuda, Tuning::kThreads, decode_codes<Format, 1, kD, Tuning>, decode_codes<Format, 2, kD, Tuning>);
  });
}

}  // namespace kvlab::decode
