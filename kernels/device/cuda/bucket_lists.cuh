#pragma once

#include "kernels/device/cuda/row_tools.cuh"

namespace kvlab {

// Items of each row by bucket, in item order. Device memory.
struct BucketLists {
  const std::int64_t *item_first, *bucket_first;  // [rows + 1]
  const std::int32_t* bucket;                     // within the row; -1: none
  std::int32_t *counts, *begin;                   // per bucket: items, start relative to item_first
  std::int32_t* items;                            // item numbers within the row
  std::int32_t *next, *found;                     // scratch: [buckets], [items]
  __device__ std::int64_t count(int row) const { return item_first[row + 1] - item_first[row]; }
};

namespace bucket_lists {

constexpr int kThreads = 256;

struct Count : BucketLists {
  __device__ void operator()(int row, std::int64_t i) const {
    const std::int32_t b = bucket[item_first[row] + i];
    if (b >= 0) atomicAdd(&counts[bucket_first[row] + b], 1);
  }
};

// One block per row.
template <int Threads>
__global__ void __launch_bounds__(Threads) scan(BucketLists a) {
  KVLAB_SHARED(std::int32_t, shared, 33);
  const std::int64_t first = a.bucket_first[blockIdx.x];
  const auto n = static_cast<std::int32_t>(a.bucket_first[blockIdx.x + 1] - first);
  std::int32_t before = 0;
  for (std::int32_t at = 0; at < n; at += Threads) {
    const std::int32_t i = at + static_cast<std::int32_t>(threadIdx.x);
    std::int32_t all;
    const std::int32_t sum = before + block_scan_exclusive(i < n ? a.counts[first + i] : 0, shared, all);
    if (i < n) a.begin[first + i] = a.next[first + i] = sum;
    before += all;
  }
}

struct Place : BucketLists {
  __device__ void operator()(int row, std::int64_t i) const {
    const std::int32_t b = bucket[item_first[row] + i];
    if (b >= 0) found[item_first[row] + atomicAdd(&next[bucket_first[row] + b], 1)] = static_cast<std::int32_t>(i);
  }
};

// Lists are short.
struct Sort : BucketLists {
  __device__ void operator()(int row, std::int64_t i) const {
    const std::int64_t first = item_first[row];
    const std::int32_t b = bucket[first + i];
    if (b < 0) return;
    const std::int64_t at = bucket_first[row] + b;
    const std::int32_t* const mine = found + first + begin[at];
    std::int32_t rank = 0;
    for (std::int32_t j = 0; j < counts[at]; ++j) rank += mine[j] < i ? 1 : 0;
    items[first + begin[at] + rank] = static_cast<std::int32_t>(i);
  }
};

}  // namespace bucket_lists

// In the current Frame.
inline BucketLists make_bucket_lists(CudaContext& cuda, const std::int64_t* item_first, const std::int64_t* bucket_first,
                                     const std::int32_t* bucket, std::int64_t items, std::int64_t buckets) {
  return {item_first,
          bucket_first,
          bucket,
          cuda.scratch<std::int32_t>(buckets),
          cuda.scratch<std::int32_t>(buckets),
          cuda.scratch<std::int32_t>(items),
          cuda.scratch<std::int32_t>(buckets),
          cuda.scratch<std::int32_t>(items)};
}

inline void fill_bucket_lists(const char* name, CudaContext& cuda, const BucketLists& a, std::int64_t rows, std::int64_t longest,
                              std::int64_t buckets) {
  cuda::fill(a.counts, 0, 4 * buckets, cuda.stream());
  launch_over_rows(name, cuda, rows, longest, bucket_lists::Count{a});
  launch(name, cuda, blocks_of(rows, bucket_lists::kThreads), bucket_lists::scan<bucket_lists::kThreads>, a);
  launch_over_rows(name, cuda, rows, longest, bucket_lists::Place{a});
  launch_over_rows(name, cuda, rows, longest, bucket_lists::Sort{a});
}

}  // namespace kvlab
