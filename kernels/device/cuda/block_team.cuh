#pragma once

#include "kernels/device/cuda/device.cuh"

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

// A block as a team of a row operation (kernels/rows/team.h). Threads are a multiple of 32.
class BlockTeam {
 public:
  static constexpr bool kOnDevice = true;
  __device__ BlockTeam(float* room, double* shared) : room_(room), shared_(shared) {}

  __device__ float* room() const { return room_; }
  __device__ double* doubles() const { return reinterpret_cast<double*>(room_); }

  template <class X, class Y>
  __device__ float dot(const X& x, const Y& y, std::int64_t n) const {
    float sum = 0.0F;
    for (std::int64_t i = 0; i < n; ++i) sum += x[i] * y[i];
    return sum;
  }

  template <class Of, class Term, class Put>
  __device__ void sums(std::int64_t n, std::int64_t width, Of&& of, Term&& term, Put&& put) const {
    const std::int64_t lane = threadIdx.x % 16, groups = blockDim.x / 16;
    for (std::int64_t first = 0; first < n; first += groups) {
      const std::int64_t i = first + threadIdx.x / 16;
      float sum = 0.0F;
      if (i < n) {
        const auto x = of(i);
        for (std::int64_t c = lane; c < width; c += 16) sum += term(x, c);
      }
      for (int far = 8; far > 0; far /= 2) sum += __shfl_xor_sync(kAllLanes, sum, far);
      if (i < n && lane == 0) put(i, sum);
    }
    __syncthreads();
  }
  template <class X, class Of, class Put>
  __device__ void dots(std::int64_t n, std::int64_t width, const X& x, Of&& of, Put&& put) const {
    const auto product = [&](const auto& y, std::int64_t c) { return x[c] * y[c]; };
    sums(n, width, of, product, put);
  }

  template <class F>
  __device__ void each(std::int64_t n, F&& f) const {
    for (std::int64_t i = threadIdx.x; i < n; i += blockDim.x) f(i);
    __syncthreads();
  }
  template <class F>
  __device__ void once(F&& f) const {
    if (threadIdx.x == 0) f();
    __syncthreads();
  }
  template <class T = float, class F>
  __device__ T sum(std::int64_t n, F&& f, T total = T{}) const {
    T own{};
    for (std::int64_t i = threadIdx.x; i < n; i += blockDim.x) own += f(i);
    return total + block_sum(own, reinterpret_cast<T*>(shared_));
  }
  template <class T, class F>
  __device__ T max(std::int64_t n, T least, F&& f) const {
    T own = least;
    for (std::int64_t i = threadIdx.x; i < n; i += blockDim.x) {
      const T x = f(i);
      own = own < x ? x : own;
    }
    return block_reduce(own, least, reinterpret_cast<T*>(shared_), [](T a, T b) { return a < b ? b : a; });
  }
  template <class Holds, class Put>
  __device__ std::int64_t pack(std::int64_t n, Holds&& holds, Put&& put) const {
    std::int32_t before = 0;
    for (std::int64_t begin = 0; begin < n; begin += blockDim.x) {
      const std::int64_t i = begin + threadIdx.x;
      const std::int32_t mine = i < n && holds(i) ? 1 : 0;
      std::int32_t total = 0;
      const std::int32_t earlier = block_scan_exclusive(mine, reinterpret_cast<std::int32_t*>(shared_), total);
      if (mine != 0) put(std::int64_t{before + earlier}, i);
      before += total;
    }
    __syncthreads();
    return before;
  }
  // Threads count the indices before theirs: n^2 comparisons.
  template <class Before>
  __device__ void sort(std::int32_t n, std::int32_t* order, Before&& before) const {
    for (std::int32_t i = threadIdx.x; i < n; i += blockDim.x) {
      std::int32_t rank = 0;
      for (std::int32_t j = 0; j < n; ++j) rank += before(j, i) || (j < i && !before(i, j)) ? 1 : 0;
      order[rank] = i;
    }
    __syncthreads();
  }
  template <class F, class Put>
  __device__ void best(std::int32_t n, std::int32_t count, F&& f, Put&& put) const {
    const auto key = [&](std::int32_t i) { return ordered_key(f(i)); };
    const BlockCut cut = block_cut(n, min(n, count), key, reinterpret_cast<std::int32_t*>(shared_));
    block_choose(n, cut, key, reinterpret_cast<std::uint64_t*>(shared_), [&](std::int32_t i, bool chosen, std::int32_t) {
      if (chosen) put(i);
    });
    __syncthreads();
  }

 private:
  float* room_;
  double* shared_;  // [33]
};

}  // namespace kvlab
