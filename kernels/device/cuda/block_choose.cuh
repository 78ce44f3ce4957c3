#pragma once

#include "kernels/device/cuda/ordered_key.cuh"

namespace kvlab {

// The largest keys, ties to the earlier, by one block (a multiple of 32 threads, one-dimensional).
struct BlockCut {
  std::uint32_t key;   // all above are chosen
  std::int32_t equal;  // number of equals chosen
};

// `shared` [33]: scratch; all threads call it and get the same.
template <class Key>
__device__ __forceinline__ BlockCut block_cut(std::int32_t n, std::int32_t keep, const Key& key, std::int32_t* shared) {
  if (keep <= 0) return {~0U, 0};
  const auto count = [&](auto&& counts) {
    std::int32_t mine = 0;
    for (std::int32_t i = threadIdx.x; i < n; i += blockDim.x) mine += counts(key(i)) ? 1 : 0;
    return block_sum(mine, shared);
  };
  std::uint32_t cut = 0;
  for (int bit = 31; bit >= 0; --bit) {
    const std::uint32_t higher = cut | 1U << bit;
    if (count([&](std::uint32_t k) { return k >= higher; }) >= keep) cut = higher;
  }
  return {cut, keep - count([&](std::uint32_t k) { return k > cut; })};
}

// f(i, chosen, chosen ones before i) for i < n. `shared` [33]: scratch; all threads call it.
template <class Key, class F>
__device__ __forceinline__ void block_choose(std::int32_t n, BlockCut cut, const Key& key, std::uint64_t* shared, F&& f) {
  std::uint64_t before = 0;  // equals in the high half
  for (std::int32_t at = 0; at < n; at += static_cast<std::int32_t>(blockDim.x)) {
    const std::int32_t i = at + static_cast<std::int32_t>(threadIdx.x);
    const std::uint32_t k = i < n ? key(i) : 0;
    const bool above = i < n && k > cut.key, equal = i < n && k == cut.key;
    std::uint64_t all;
    const std::uint64_t mine = before + block_scan_exclusive(std::uint64_t{above} | std::uint64_t{equal} << 32, shared, all);
    const auto equals = static_cast<std::int32_t>(mine >> 32);
    if (i < n) f(i, above || (equal && equals < cut.equal), static_cast<std::int32_t>(mine & 0xFFFFFFFFU) + min(equals, cut.equal));
    before += all;
  }
}

}  // namespace kvlab
