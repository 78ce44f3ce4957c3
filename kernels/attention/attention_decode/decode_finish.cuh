#pragma once

#include "kernels/attention/attention_decode/decode_core.cuh"

// Adds up a block's warps; a row's last block adds up its blocks.
namespace kvlab::decode {

template <int D>
__device__ __forceinline__ void put(const Args& a, std::int64_t at, const float4& x) {
  if (a.out_type == ElementType::kF32)
    *reinterpret_cast<float4*>(static_cast<float*>(a.out) + at) = x;
  else if (a.out_type == ElementType::kF16)
    *reinterpret_cast<uint2*>(static_cast<f16*>(a.out) + at) = make_uint2(pack<f16>(x.x, x.y), pack<f16>(x.z, x.w));
  else
    *reinterpret_cast<uint2*>(static_cast<bf16*>(a.out) + at) = make_uint2(pack<bf16>(x.x, x.y), pack<bf16>(x.z, x.w));
}

__device__ __forceinline__ void put_log_sum(const Args& a, std::int32_t row, int head, float top, float sum) {
  if (a.log_sum == nullptr) return;
  constexpr float kLn2 = 0.69314718056F;
  a.log_sum[static_cast<std::int64_t>(row) * a.group + head] = sum == 0.0F ? -INFINITY : (top + log2f(sum)) * kLn2;
}

// `flag` is in shared memory.
__device__ __forceinline__ bool comes_last(const Args& a, const Stretch& at, std::int32_t* flag) {
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    *flag = atomicAdd(a.counters + at.row, 1) == at.splits - 1;
    if (*flag != 0) a.counters[at.row] = 0;
  }
  __syncthreads();
  if (*flag == 0) return false;
  __threadfence();
  return true;
}

// weight [splits, kMostGroup]; `stats` are the row's. A warp per head.
template <int Threads>
__device__ __forceinline__ void weigh_splits(const Args& a, const Stretch& at, float value_scale, const float* stats, float* weight) {
  for (int head = warp_index(); head < a.group; head += Threads / 32) {
    float top = -INFINITY;
    for (int s = lane_index(); s < at.splits; s += 32) top = fmaxf(top, stats[s * 2 * kMostGroup + head]);
    top = warp_max(top);
    float sum = 0;
    for (int s = lane_index(); s < at.splits; s += 32) {
      const float own = stats[s * 2 * kMostGroup + head];
      const float factor = own == -INFINITY ? 0.0F : fast_exp2(own - top);
      weight[s * kMostGroup + head] = factor;
      sum += factor * stats[s * 2 * kMostGroup + kMostGroup + head];
    }
    sum = warp_sum(sum);
    const float inverse = sum == 0.0F ? 0.0F : value_scale / sum;
    for (int s = lane_index(); s < at.splits; s += 32) weight[s * kMostGroup + head] *= inverse;
    if (lane_index() == 0) put_log_sum(a, at.row, head, top, sum);
  }
}

// In token order.
template <int D, int Threads>
__device__ __forceinline__ void combine(const Args& a, const Stretch& at, float value_scale, float* weight) {
  if (!comes_last(a, at, reinterpret_cast<std::int32_t*>(weight + kMostSplits * kMostGroup))) return;
  const std::int64_t first = static_cast<std::int64_t>(at.row) * a.max_splits;
  weigh_splits<Threads>(a, at, value_scale, a.partial_stats + first * (2 * kMostGroup), weight);
  __syncthreads();
  const int width = a.group * D;
  const float* const partial = a.partial + first * width;
  for (int x = 4 * static_cast<int>(threadIdx.x); x < width; x += 4 * Threads) {
    float4 total = make_float4(0, 0, 0, 0);
#pragma unroll 16
    for (int s = 0; s < at.splits; ++s) {
      const float w = weight[s * kMostGroup + x / D];
      const float4 part = *reinterpret_cast<const float4*>(partial + static_cast<std::int64_t>(s) * width + x);
      total.x += w * part.x, total.y += w * part.y, total.z += w * part.z, total.w += w * part.w;
    }
    put<D>(a, static_cast<std::int64_t>(at.row) * width + x, total);
  }
}

template <class Tune, int Tiles, int D>
struct WarpResults {
  static constexpr int kHeads = 8 * Tiles, kRow = D + 4;  // padded against bank conflicts
  float *tops, *sums;                                     // [warps, kHeads]; weigh() turns tops into factors
  float* all;                                             // [2, kHeads] largest logit, sum of probabilities
  float* outs;                                            // [warps, kHeads, kRow] times the warp's factor

  __device__ __forceinline__ explicit WarpResults(unsigned char* shared) {
    tops = reinterpret_cast<float*>(shared), sums = tops + Tune::kWarps * kHeads;
    all = sums + Tune::kWarps * kHeads, outs = all + 2 * kHeads;
  }

  __device__ __forceinline__ void put_stats(const State<Tiles, D>& state) {
    const int lane = lane_index(), warp = warp_index(), g = lane / 4, t = lane % 4;
#pragma unroll
    for (int n = 0; n < Tiles; ++n)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float sum = state.sum[n][e];
#pragma unroll
        for (int lanes = 4; lanes < 32; lanes *= 2) sum += __shfl_xor_sync(kAllLanes, sum, lanes);
        if (g == 0) {
          tops[warp * kHeads + 8 * n + 2 * t + e] = state.top[n][e] == -INFINITY ? -INFINITY : state.base[n][e];
          sums[warp * kHeads + 8 * n + 2 * t + e] = sum;
        }
      }
  }

  // A thread per head.
  __device__ __forceinline__ void weigh() {
    if (threadIdx.x >= kHeads) return;
    float top = -INFINITY, sum = 0;
    for (int w = 0; w < Tune::kWarps; ++w) top = fmaxf(top, tops[w * kHeads + threadIdx.x]);
    for (int w = 0; w < Tune::kWarps; ++w) {
      const float own = tops[w * kHeads + threadIdx.x], factor = own == -INFINITY ? 0.0F : fast_exp2(own - top);
      sum += factor * sums[w * kHeads + threadIdx.x];
      tops[w * kHeads + threadIdx.x] = factor;
    }
    all[threadIdx.x] = top, all[kHeads + threadIdx.x] = sum;
  }

  // Heads before `group`.
  template <class Units>
  __device__ __forceinline__ void put_sums(const State<Tiles, D>& state, int group) {
    const int warp = warp_index(), t = lane_index() % 4;
#pragma unroll
    for (int n = 0; n < Tiles; ++n)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int head = 8 * n + 2 * t + e;
        if (head >= group) continue;
        const float factor = tops[warp * kHeads + head];
        float* const to = outs + (warp * kHeads + head) * kRow;
#pragma unroll
        for (int m = 0; m < D / 16; ++m) {
          to[Units::channel(m, 0)] = state.out[n][m][e] * factor;
          to[Units::channel(m, 1)] = state.out[n][m][2 + e] * factor;
        }
      }
  }

  __device__ __forceinline__ float4 total(int head, int c) const {
    float4 total = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int w = 0; w < Tune::kWarps; ++w) {
      const float4 own = *reinterpret_cast<const float4*>(outs + (w * kHeads + head) * kRow + c);
      total.x += own.x, total.y += own.y, total.z += own.z, total.w += own.w;
    }
    return total;
  }
};

// Units::channel(m, half): channel of row g + 8 * half of product m. `value_scale` multiplies the result.
template <class Units, class Tune, int Tiles, int D>
__device__ __forceinline__ void finish(const Args& a, const Stretch& at, State<Tiles, D>& state, float value_scale, unsigned char* shared) {
  WarpResults<Tune, Tiles, D> results(shared);
  constexpr int kHeads = WarpResults<Tune, Tiles, D>::kHeads;
  __syncthreads();  // all warps have left their stages
  results.put_stats(state);
  __syncthreads();
  results.weigh();
  __syncthreads();
  results.template put_sums<Units>(state, a.group);
  __syncthreads();
  const float* const all = results.all;
  const bool whole = at.splits == 1;
  const std::int64_t width = static_cast<std::int64_t>(a.group) * D, part = static_cast<std::int64_t>(at.row) * a.max_splits + at.split;
  for (int x = 4 * static_cast<int>(threadIdx.x); x < width; x += 4 * Tune::kThreads) {
    const int head = x / D;
    const float4 total = results.total(head, x % D);
    if (whole) {
      const float sum = all[kHeads + head], inverse = sum == 0.0F ? 0.0F : value_scale / sum;
      put<D>(a, at.row * width + x, make_float4(total.x * inverse, total.y * inverse, total.z * inverse, total.w * inverse));
    } else {
      *reinterpret_cast<float4*>(a.partial + part * width + x) = total;
    }
  }
  if (static_cast<int>(threadIdx.x) < a.group) {
    const int head = static_cast<int>(threadIdx.x);
    if (whole) {
      put_log_sum(a, at.row, head, all[head], all[kHeads + head]);
    } else {
      a.partial_stats[part * 2 * kMostGroup + head] = all[head];
      a.partial_stats[part * 2 * kMostGroup + kMostGroup + head] = all[kHeads + head];
    }
  }
  if (!whole) combine<D, Tune::kThreads>(a, at, value_scale, reinterpret_cast<float*>(shared));
}

}  // namespace kvlab::decode
