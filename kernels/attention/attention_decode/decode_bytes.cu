#include "kernels/attention/attention_decode/decode_core.cuh"
#include "kernels/attention/attention_decode/decode_finish.cuh"

namespace kvlab::decode {

// fp8 with a scale per row, int8 (code + 127) with a scale per token. Products in fp16.
template <KvFormat Format, int Tiles, int D>
struct Bytes {
  static constexpr bool kInt8 = Format == KvFormat::kInt8;
  static constexpr int kRow = D / 16;
  static constexpr int kSide = 16 * D, kScales = 2 * kSide, kBytes = static_cast<int>(unit_bytes(Format, D));
  static constexpr int kOwn = D / 32;  // words of V of a lane per token

  const Args& a;
  const Stretch& at;
  float scale;
  std::uint32_t q[Tiles][D / 16][2] = {};

  // Adjacent bytes of V, at most 16 at a time.
  static __device__ __forceinline__ int channel(int m, int half) {
    constexpr int kRun = D < 128 ? D / 8 : 16;
    const int index = 2 * m + half;
    return index / kRun * 8 * kRun + lane_index() / 4 * kRun + index % kRun;
  }

  // Reads K four columns of two rows at a time, V two columns of every second row.
  static __device__ __forceinline__ SharedPlace k_place(int row, int column) {
    return 16 * (row * kRow + (kRow % 8 == 0 ? column ^ row % 2 * 4 : column));
  }
  static __device__ __forceinline__ SharedPlace v_place(int row, int column) {
    return 16 * (row * kRow + (column ^ (kRow % 8 == 0 ? row % 8 : row / 2 % 4)));
  }

  __device__ __forceinline__ void start() {
    if (a.kv.type == ElementType::kF16)
      load_query<f16, f16, 16, Tiles, D>(a, at.row, q);
    else
      load_query<bf16, f16, 16, Tiles, D>(a, at.row, q);
  }

  __device__ __forceinline__ void issue(SharedPlace stage, std::int32_t unit, std::int32_t page) const {
    const std::int32_t token = unit * 16, in_page = token & (a.kv.page_tokens - 1), valid = at.end - token;
    const std::int64_t begin = page * page_bytes(Format, D, a.kv.page_tokens);
    const auto* const from_k = static_cast<const unsigned char*>(a.kv.k) + begin;
    const auto* const from_v = static_cast<const unsigned char*>(a.kv.v) + begin;
#pragma unroll
    for (int i = 0; i < kRow / 2; ++i) {
      const int vector = 32 * i + lane_index(), row = vector / kRow, column = vector % kRow;
      cp_async16(stage + k_place(row, column), from_k + in_page * D + 16 * vector, row < valid);
      cp_async16(stage + kSide + v_place(row, column), from_v + in_page * D + 16 * vector, row < valid);
    }
    if (kInt8 && lane_index() < 4) {  // 16 scales of fp16 for K, then for V
      const auto* const scales = (lane_index() < 2 ? from_k : from_v) + a.kv.page_tokens * D + 2 * in_page;
      cp_async16(stage + kScales + 16 * lane_index(), scales + lane_index() % 2 * 16);
    }
  }

  static __device__ __forceinline__ void expand(std::uint32_t word, std::uint32_t& low, std::uint32_t& high) {
    if constexpr (kInt8) {  // 0x6400 | byte is 1024 + byte
      low = fma2<f16>(__byte_perm(word, 0x64646464U, 0x4140), 0x3C003C00U, 0xE47FE47FU);
      high = fma2<f16>(__byte_perm(word, 0x64646464U, 0x4342), 0x3C003C00U, 0xE47FE47FU);
    } else {
      low = unpack_fp8<0>(word), high = unpack_fp8<1>(word);
    }
  }

  __device__ __forceinline__ void use(SharedPlace stage, std::int32_t unit, State<Tiles, D>& state) const {
    const std::int32_t token = unit * 16;
    float s[Tiles][4] = {};
    scores(stage, s);
    if (token + 16 > at.end) mask(s, token, at.end);
    if (a.logits != nullptr) keep_logits(a, at, s, scale, token);
    std::uint32_t p[Tiles][2];
    soften<f16>(s, scale, state, p);
    add_values(stage, token, p, state);
  }

  // Added to s.
  __device__ __forceinline__ void scores(SharedPlace stage, float (&s)[Tiles][4]) const {
    const int g = lane_index() / 4, t = lane_index() % 4;
    float odd[Tiles][4] = {};
#pragma unroll
    for (int c = 0; c < D / 64; ++c) {
      const uint4 x = load_shared16(stage + k_place(g, 4 * c + t)), y = load_shared16(stage + k_place(g + 8, 4 * c + t));
      const std::uint32_t low[4] = {x.x, x.y, x.z, x.w}, high[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        std::uint32_t k[4];
        expand(low[w], k[0], k[2]);
        expand(high[w], k[1], k[3]);
#pragma unroll
        for (int n = 0; n < Tiles; ++n) mma_16x8x16<f16>(w % 2 == 0 ? s[n] : odd[n], k, q[n][4 * c + w]);
      }
    }
    float low = 1, high = 1;
    if constexpr (kInt8) {  // tokens g and g + 8
      low = unpack<f16>(load_shared4(stage + kScales + g / 2 * 4) >> g % 2 * 16).x;
      high = unpack<f16>(load_shared4(stage + kScales + 16 + g / 2 * 4) >> g % 2 * 16).x;
    }
#pragma unroll
    for (int n = 0; n < Tiles; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) s[n][i] = (s[n][i] + odd[n][i]) * (i < 2 ? low : high);
  }

  static __device__ __forceinline__ void load_values(SharedPlace side, int row, std::uint32_t (&x)[kOwn]) {
    const int g = lane_index() / 4;
    if constexpr (kOwn == 2) {
      const uint2 y = load_shared8(side + v_place(row, g / 2) + g % 2 * 8);
      x[0] = y.x, x[1] = y.y;
    } else {
#pragma unroll
      for (int i = 0; i < kOwn / 4; ++i) {
        const uint4 y = load_shared16(side + v_place(row, 8 * i + g));
        x[4 * i] = y.x, x[4 * i + 1] = y.y, x[4 * i + 2] = y.z, x[4 * i + 3] = y.w;
      }
    }
  }

  __device__ __forceinline__ void add_values(SharedPlace stage, std::int32_t token, const std::uint32_t (&p)[Tiles][2],
                                             State<Tiles, D>& state) const {
    const int t = lane_index() % 4;
    std::uint32_t x[4][kOwn];  // tokens 2t, 2t + 1, 2t + 8, 2t + 9
#pragma unroll
    for (int i = 0; i < 4; ++i) load_values(stage + kSide, 2 * t + i / 2 * 8 + i % 2, x[i]);
    std::uint32_t scales[2] = {0, 0};
    if constexpr (kInt8) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        scales[i] = load_shared4(stage + kScales + 32 + 16 * i + 4 * t);
        if (token + 16 > at.end) scales[i] = kept_halves(scales[i], at.end - (token + 2 * t + 8 * i));
      }
    }
#pragma unroll
    for (int w = 0; w < kOwn; ++w)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const unsigned selector = half == 0 ? 0x5140 : 0x7362;
        std::uint32_t v[4];
        expand(__byte_perm(x[0][w], x[1][w], selector), v[0], v[1]);
        expand(__byte_perm(x[2][w], x[3][w], selector), v[2], v[3]);
        if constexpr (kInt8)
#pragma unroll
          for (int i = 0; i < 4; ++i) v[i] = fma2<f16>(v[i], scales[i / 2], 0x80008000U);
#pragma unroll
        for (int n = 0; n < Tiles; ++n) mma_16x8x16<f16>(state.out[n][2 * w + half], v, p[n]);
      }
  }
};

template <KvFormat Format, int Tiles, int D, class Tuning>
__global__ void __launch_bounds__(Tuning::kThreads, blocks_for(Tuning::kBlocks, 8 * Tiles)) decode_bytes(Args a) {
  KVLAB_DYNAMIC_SHARED(unsigned char, shared);
  using Units = Bytes<Format, Tiles, D>;
  const Stretch at = stretch_of(a);
  if (at.split >= at.splits) return;
  Units units{a, at, a.scale};
  float value_scale = 1;
  if (Format == KvFormat::kFp8 && a.kv.k_scale != nullptr) units.scale *= a.kv.k_scale[at.row];
  if (Format == KvFormat::kFp8 && a.kv.v_scale != nullptr) value_scale = a.kv.v_scale[at.row];
  State<Tiles, D> state;
  stream<Tuning>(units, at.pages, a.units_shift, at.begin / 16, (at.end + 15) / 16, own_stages<Tuning, Units>(shared), state);
  finish<Units, Tuning>(a, at, state, value_scale, shared);
}

namespace {

template <KvFormat Format>
void run_format(const Args& a, const DecodePlan& plan, CudaContext& cuda) {
  for_tuning<Format, 64, 128, 256>(a, plan, [&](auto d, auto tuning) {
    using Tuning = decltype(tuning);
    constexpr int kD = decltype(d)::value;
    launch_tuned("decode_bytes", a, plan, cuda, Tuning::kThreads, decode_bytes<Format, 1, kD, Tuning>, decode_bytes<Format, 2, kD, Tuning>);
  });
}

}  // namespace

void run_bytes(const Args& a, const DecodePlan& plan, CudaContext& cuda) {
  if (a.kv.format == KvFormat::kFp8)
    run_format<KvFormat::kFp8>(a, plan, cuda);
  else
    run_format<KvFormat::kInt8>(a, plan, cuda);
}

}  // namespace kvlab::decode
