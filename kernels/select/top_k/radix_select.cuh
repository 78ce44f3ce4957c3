#pragma once

#include "kernels/device/cuda/device.cuh"

namespace kvlab {

// The key of a given rank, by digits of 11, 11 and 10 bits from the highest. Integer counts: atomics are deterministic.
namespace radix {

constexpr int kDigits = 3, kBins = 2048;

__host__ __device__ constexpr int shift_of(int digit) { return digit == 0 ? 21 : digit == 1 ? 10 : 0; }
__host__ __device__ constexpr int bins_of(int digit) { return digit == 2 ? 1024 : 2048; }

// Known digits, and the rank among keys that begin with them.
struct Search {
  std::uint32_t prefix = 0, want = 0;
};

__device__ __forceinline__ bool begins_with(std::uint32_t key, int digit, std::uint32_t prefix) {
  return digit == 0 || (key ^ prefix) >> shift_of(digit - 1) == 0;
}
template <int Digit>
__device__ __forceinline__ std::uint32_t bin_of(std::uint32_t key) {
  return key >> shift_of(Digit) & (bins_of(Digit) - 1);
}

// The key's next digit. All threads call it; shared [35]: scratch.
template <int Digit, int Threads>
__device__ __forceinline__ Search add_digit(const std::uint32_t* histogram, Search search, std::uint32_t* shared) {
  constexpr int kMine = bins_of(Digit) / Threads;
  const int top = bins_of(Digit) - 1 - static_cast<int>(threadIdx.x) * kMine;
  std::uint32_t count[kMine], sum = 0, all;
#pragma unroll
  for (int i = 0; i < kMine; ++i) {
    count[i] = histogram[top - i];
    sum += count[i];
  }
  std::uint32_t above = block_scan_exclusive(sum, shared, all);
  if (above < search.want && search.want <= above + sum) {
#pragma unroll
    for (int i = 0; i < kMine; ++i) {
      if (above < search.want && search.want <= above + count[i]) {
        shared[33] = search.prefix | static_cast<std::uint32_t>(top - i) << shift_of(Digit);
        shared[34] = search.want - above;
      }
      above += count[i];
    }
  }
  __syncthreads();
  return {shared[33], shared[34]};
}

// Chosen: keys above `key`, and the first `need` equal to it.
struct Cut {
  std::uint32_t key, need;
};

// Counts above (low half) and at (high half) the cut; up to 65,535 each.
__device__ __forceinline__ std::uint32_t tally(std::uint32_t key, std::uint32_t cut) {
  return (key > cut ? 1U : 0U) + (key == cut ? 0x10000U : 0U);
}

// Four keys; outside of [0, n) key 0, below all scores.
__device__ __forceinline__ void load_keys(const float* scores, std::int64_t at, std::int64_t n, std::uint32_t* key) {
  if (at >= 0 && at + 4 <= n) {
    const float4 x = *reinterpret_cast<const float4*>(scores + at);
    key[0] = ordered_key(x.x), key[1] = ordered_key(x.y), key[2] = ordered_key(x.z), key[3] = ordered_key(x.w);
    return;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) key[i] = at + i >= 0 && at + i < n ? ordered_key(scores[at + i]) : 0U;
}

// Numbers between a 16-byte boundary and the row's first score.
__device__ __forceinline__ int skew_of(const float* scores) { return static_cast<int>(reinterpret_cast<std::uintptr_t>(scores) / 4 % 4); }

// Vector v of lane l is at warp_base + 4 * (32 v + l).
template <int PerThread>
__device__ __forceinline__ void load_stretch(const float* scores, std::int64_t warp_base, std::int64_t n, std::uint32_t (&key)[PerThread]) {
#pragma unroll
  for (int v = 0; v < PerThread / 4; ++v) load_keys(scores, warp_base + 4 * (v * kWarpSize + lane_index()), n, key + 4 * v);
}

// put(place, token) for the chosen of a stretch; above, equal: counts before it.
template <int PerThread, class Put>
__device__ __forceinline__ void put_chosen(const std::uint32_t (&key)[PerThread], std::int64_t warp_base, Cut cut, std::uint32_t above,
                                           std::uint32_t equal, Put put) {
#pragma unroll
  for (int v = 0; v < PerThread / 4; ++v) {
    std::uint32_t mine = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) mine += tally(key[4 * v + i], cut.key);
    if (!__any_sync(kAllLanes, mine != 0)) continue;
    const std::uint32_t sum = warp_scan(mine), all = __shfl_sync(kAllLanes, sum, kWarpSize - 1), before = sum - mine;
    std::uint32_t a = above + (before & 0xFFFFU), e = equal + (before >> 16);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const std::uint32_t k = key[4 * v + i];
      const bool is_equal = k == cut.key;
      if (k > cut.key || (is_equal && e < cut.need))
        put(static_cast<std::int32_t>(a + min(e, cut.need)), static_cast<std::int32_t>(warp_base) + 4 * (v * kWarpSize + lane_index()) + i);
      a += k > cut.key ? 1 : 0, e += is_equal ? 1 : 0;
    }
    above += all & 0xFFFFU, equal += all >> 16;
  }
}

}  // namespace radix

}  // namespace kvlab
