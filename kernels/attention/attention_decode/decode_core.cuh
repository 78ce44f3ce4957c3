#pragma once

#include <type_traits>
#include <utility>

#include "kernels/attention/attention_decode/decode_plan.h"
#include "kernels/device/cuda/launch.cuh"

// A block attends to a stretch of a row; warps have separate stages and softmax. Tensor-core products, rows of 16 tokens or channels,
// columns of 8 query heads:
//   scores [16 tokens, 8 heads] = K q^T            out [16 channels, 8 heads] += V^T p^T
// Lane 4 g + t holds rows g and g + 8 of heads 2t and 2t + 1.
namespace kvlab::decode {

struct Args {
  PagedKv kv;
  const void* q;
  void* out;
  float* log_sum;
  float* logits;  // [first[num_rows], group] log2 units; may be null
  const std::int64_t* first;
  float* partial;        // [num_rows, max_splits, group, head_dim]
  float* partial_stats;  // [num_rows, max_splits, 2, kMostGroup] largest log2 logit, sum of probabilities
  std::int32_t* counters;
  std::int32_t group, chunk, max_splits;
  std::int32_t units_shift;  // log2 of a page's units
  float scale;               // times log2(e)
  ElementType out_type;
};

// The softmax base changes beyond this many log2 units.
constexpr float kSlack = 8.0F;

struct Stretch {
  std::int32_t row, len, split, splits, begin, end;
  const std::int32_t* pages;
};

__device__ __forceinline__ Stretch stretch_of(const Args& a) {
  Stretch s;
  s.row = static_cast<std::int32_t>(blockIdx.x) / a.max_splits;
  s.split = static_cast<std::int32_t>(blockIdx.x) % a.max_splits;
  s.len = a.kv.len[s.row];
  s.pages = a.kv.page + a.kv.page_begin[s.row];
  s.splits = max(1, min(a.max_splits, (s.len + a.chunk - 1) / a.chunk));
  s.begin = s.split * a.chunk;
  s.end = s.split + 1 < s.splits ? s.begin + a.chunk : s.len;
  return s;
}

// A tile has 8 heads.
template <int Tiles, int D>
struct State {
  float top[Tiles][2];        // largest q.k, within kSlack
  float base[Tiles][2] = {};  // top in log2 units; 0: none
  float sum[Tiles][2] = {};   // the lane's
  float out[Tiles][D / 16][4] = {};

  __device__ __forceinline__ State() {
#pragma unroll
    for (int n = 0; n < Tiles; ++n) top[n][0] = top[n][1] = -INFINITY;
  }
};

template <int Tiles, int D>
__device__ __forceinline__ void raise(const float (&s)[Tiles][4], float scale, State<Tiles, D>& state) {
#pragma unroll
  for (int n = 0; n < Tiles; ++n)
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      float top = fmaxf(s[n][e], s[n][2 + e]);
#pragma unroll
      for (int lanes = 4; lanes < 32; lanes *= 2) top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, lanes));
      top = fmaxf(top, state.top[n][e]);
      const float factor = state.top[n][e] == -INFINITY ? 0.0F : fast_exp2((state.top[n][e] - top) * scale);
      state.top[n][e] = top;
      state.base[n][e] = top == -INFINITY ? 0.0F : top * scale;
      state.sum[n][e] *= factor;
#pragma unroll
      for (int m = 0; m < D / 16; ++m) state.out[n][m][e] *= factor, state.out[n][m][2 + e] *= factor;
    }
}

// For the second product, transposed.
template <class P, int Tiles, int D>
__device__ __forceinline__ void soften(const float (&s)[Tiles][4], float scale, State<Tiles, D>& state, std::uint32_t (&p)[Tiles][2]) {
  const float slack = kSlack / scale;
  bool grows = false;
#pragma unroll
  for (int n = 0; n < Tiles; ++n)
#pragma unroll
    for (int e = 0; e < 2; ++e) grows |= fmaxf(s[n][e], s[n][2 + e]) > state.top[n][e] + slack;
  if (__any_sync(kAllLanes, grows)) raise(s, scale, state);
#pragma unroll
  for (int n = 0; n < Tiles; ++n) {
    float x[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] = fast_exp2(fmaf(s[n][i], scale, -state.base[n][i % 2]));
    state.sum[n][0] += x[0] + x[2], state.sum[n][1] += x[1] + x[3];
    p[n][0] = transpose_matrix(pack<P>(x[0], x[1]));
    p[n][1] = transpose_matrix(pack<P>(x[2], x[3]));
  }
}

// From `end` on; `token` is the first of 16.
template <int Tiles>
__device__ __forceinline__ void mask(float (&s)[Tiles][4], std::int32_t token, std::int32_t end) {
  const std::int32_t low = token + lane_index() / 4;
#pragma unroll
  for (int n = 0; n < Tiles; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (low + i / 2 * 8 >= end) s[n][i] = -INFINITY;
}

template <int Tiles>
__device__ __forceinline__ void keep_logits(const Args& a, const Stretch& at, const float (&s)[Tiles][4], float scale, std::int32_t token) {
  const int lane = lane_index();
#pragma unroll
  for (int n = 0; n < Tiles; ++n)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const std::int32_t i = token + lane / 4 + 8 * half, head = 8 * n + 2 * (lane % 4);
      if (i >= at.end || head >= a.group) continue;
      float* const to = a.logits + (a.first[at.row] + i) * a.group + head;
      const float x = s[n][2 * half] * scale, y = s[n][2 * half + 1] * scale;
      if (a.group % 2 == 0) {
        *reinterpret_cast<float2*>(to) = make_float2(x, y);
      } else {
        to[0] = x;
        if (head + 1 < a.group) to[1] = y;
      }
    }
}

// Lane 4 g + t has `Vector` channels of each 4 * Vector (2: as ldmatrix), head g of each tile. T is q's type, P the product's.
template <class T, class P, int Vector, int Tiles, int D>
__device__ __forceinline__ void load_query(const Args& a, std::int32_t row, std::uint32_t (&q)[Tiles][D / 16][2]) {
  constexpr int kPairs = Vector / 2, kAtOnce = Vector == 2 ? 1 : 4;
  const int g = lane_index() / 4, t = lane_index() % 4;
#pragma unroll
  for (int n = 0; n < Tiles; ++n) {
    const int head = 8 * n + g;
    const T* const from = static_cast<const T*>(a.q) + (static_cast<std::int64_t>(row) * a.group + head) * D + t * Vector;
#pragma unroll
    for (int c = 0; c < D / 8; c += kAtOnce) {
      const T* const at = from + c / kPairs * 4 * Vector + c % kPairs * 2;
      uint4 x = make_uint4(0, 0, 0, 0);
      if (head < a.group) {
        if constexpr (kAtOnce == 1)
          x.x = *reinterpret_cast<const std::uint32_t*>(at);
        else
          x = *reinterpret_cast<const uint4*>(at);
      }
      const std::uint32_t pair[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if constexpr (std::is_same_v<T, P>) {
          q[n][(c + i) / 2][(c + i) % 2] = pair[i];
        } else {
          const float2 y = unpack<T>(pair[i]);
          q[n][(c + i) / 2][(c + i) % 2] = pack<P>(y.x, y.y);
        }
      }
    }
  }
}

// Pages of every Warps-th unit, read 32 ahead.
template <int Warps>
struct PagesAhead {
  const std::int32_t* page;
  std::int32_t unit, count, shift, held, next;

  __device__ __forceinline__ PagesAhead(const std::int32_t* row_pages, std::int32_t first_unit, std::int32_t num, std::int32_t units_shift)
      : page(row_pages), unit(first_unit), count(num), shift(units_shift) {
    held = load(lane_index());
    next = load(32 + lane_index());
  }
  __device__ __forceinline__ std::int32_t load(std::int32_t i) const { return i < count ? page[(unit + i * Warps) >> shift] : 0; }
  __device__ __forceinline__ std::int32_t at(std::int32_t i) {
    if (i % 32 == 0 && i > 0) {
      held = next;
      next = load(i + 32 + lane_index());
    }
    return __shfl_sync(kAllLanes, held, i % 32);
  }
};

template <class Tune, class Units>
__device__ __forceinline__ SharedPlace own_stages(const unsigned char* shared) {
  return shared_place(shared) + warp_index() * (Tune::kStages * Units::kBytes);
}

__device__ __forceinline__ std::uint32_t kept_halves(std::uint32_t pair, std::int32_t count) {
  return count >= 2 ? pair : count == 1 ? pair & 0xFFFFU : 0U;
}

// Units [first, last) of a warp: units.issue() starts copies, units.use() attends.
template <class Tune, class Units, class S>
__device__ __forceinline__ void stream(Units& units, const std::int32_t* pages, std::int32_t units_shift, std::int32_t first,
                                       std::int32_t last, SharedPlace stages, S& state) {
  constexpr int kStages = Tune::kStages;
  const std::int32_t unit = first + warp_index(), count = unit < last ? (last - unit + Tune::kWarps - 1) / Tune::kWarps : 0;
  if (count == 0) return;
  PagesAhead<Tune::kWarps> ahead(pages, unit, count, units_shift);
#pragma unroll
  for (int s = 0; s < kStages - 1; ++s) {
    if (s < count) units.issue(stages + s * Units::kBytes, unit + s * Tune::kWarps, ahead.at(s));
    cp_async_commit();
  }
  units.start();
  int from = 0, to = kStages - 1;
  for (std::int32_t i = 0; i < count; ++i) {
    cp_async_wait<kStages - 2>();
    __syncwarp();  // unit i is visible, the next stage free
    const std::int32_t coming = i + kStages - 1;
    if (coming < count) units.issue(stages + to * Units::kBytes, unit + coming * Tune::kWarps, ahead.at(coming));
    cp_async_commit();
    units.use(stages + from * Units::kBytes, unit + i * Tune::kWarps, state);
    from = from + 1 == kStages ? 0 : from + 1;
    to = to + 1 == kStages ? 0 : to + 1;
  }
  cp_async_wait<0>();
  __syncwarp();
}

template <int Warps_, int Stages_, int Blocks_>
struct Tune {
  static constexpr int kWarps = Warps_, kStages = Stages_, kBlocks = Blocks_, kThreads = 32 * Warps_;
};

// Separate files shorten compilation.
void run_f16(const Args& a, const DecodePlan& plan, CudaContext& cuda);
void run_bf16(const Args& a, const DecodePlan& plan, CudaContext& cuda);
void run_bytes(const Args& a, const DecodePlan& plan, CudaContext& cuda);
void run_kivi(const Args& a, const DecodePlan& plan, CudaContext& cuda);
void run_token_codes(const Args& a, const DecodePlan& plan, CudaContext& cuda);

// run(head_dim, Tune{}) for the plan's tuning.
template <KvFormat Format, int... HeadDims, class F>
void for_tuning(const Args& a, const DecodePlan& plan, F&& run) {
  for_value<HeadDims...>(a.kv.head_dim, [&](auto d) {
    constexpr int kD = decltype(d)::value;
    const auto choose = [&]<int... I>(std::integer_sequence<int, I...>) {
      for_value<I...>(plan.tuning, [&](auto i) {
        constexpr DecodeTuning t = tunings(Format, kD)[decltype(i)::value];
        run(d, Tune<t.warps, t.stages, t.blocks>{});
      });
    };
    choose(std::make_integer_sequence<int, tunings(Format, kD).size()>{});
  });
}

// Up to 8 query heads per KV head, or up to 16.
inline void launch_tuned(const char* name, const Args& a, const DecodePlan& plan, CudaContext& cuda, int threads, void (*few)(Args),
                         void (*many)(Args)) {
  launch(name, cuda, blocks_of(a.kv.num_rows * a.max_splits, threads, plan.shared_bytes), a.group <= 8 ? few : many, a);
}

}  // namespace kvlab::decode
