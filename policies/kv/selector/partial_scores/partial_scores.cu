#include <algorithm>
#include <cmath>

#include "kernels/device/cuda/download.h"
#include "kernels/device/cuda/over_rows.cuh"
#include "kernels/device/cuda/row_tools.cuh"
#include "kernels/device/cuda/upload.h"
#include "policies/kv/selector/partial_scores/partial_scores.h"

namespace kvlab {

namespace {

struct Partial {
  const float* const* query;    // [num_rows] -> [group, head_dim]
  const float* const* basis;    // [num_rows] -> [width, head_dim]
  const float* const* partial;  // [num_rows] -> [tokens, width]
  const std::int64_t* first;
  std::int32_t num_rows, group, head_dim, width;
  float scale;
  float* reduced;  // [num_rows, group, width]
  float* logits;   // row r, head h from group * first[r] + h * tokens on
  float* top;      // [num_rows, group]
  float* scores;

  __device__ float* logits_of(int row, int head) const { return logits + group * first[row] + head * (first[row + 1] - first[row]); }
  __device__ std::int64_t count(int row) const { return first[row + 1] - first[row]; }
  __device__ void operator()(int row, std::int64_t i) const {
    float best = 0;
    for (int h = 0; h < group; ++h) {
      const float z = logits_of(row, h)[i] - top[row * group + h];
      best = h == 0 ? z : fmaxf(best, z);
    }
    scores[first[row] + i] = best;
  }
};

// A warp per row, head and direction.
__global__ void __launch_bounds__(kRowThreads) reduce_queries(Partial a) {
  const std::int64_t item = warp_item();
  if (item >= std::int64_t{a.num_rows} * a.group * a.width) return;
  const int j = static_cast<int>(item % a.width), head = static_cast<int>(item / a.width % a.group);
  const int row = static_cast<int>(item / a.width / a.group);
  if (a.first[row + 1] == a.first[row]) return;
  const float z = a.scale * warp_dot(a.query[row] + head * a.head_dim, a.basis[row] + std::int64_t{j} * a.head_dim, a.head_dim);
  if (lane_index() == 0) a.reduced[item] = z;
}

struct Logits {
  Partial a;
  __device__ std::int64_t count(int row) const { return a.count(row); }
  __device__ void operator()(int row, std::int64_t i) const {
    const float* const key = a.partial[row] + i * a.width;
    for (int h = 0; h < a.group; ++h) {
      const float* const q = a.reduced + (std::int64_t{row} * a.group + h) * a.width;
      float z = 0;
      for (int j = 0; j < a.width; ++j) z += q[j] * key[j];
      a.logits_of(row, h)[i] = z;
    }
  }
};

// A block per row and head.
__global__ void __launch_bounds__(kRowThreads) largest_logits(Partial a) {
  KVLAB_SHARED(float, shared, 33);
  const int row = blockIdx.x / a.group, head = blockIdx.x % a.group;
  float top = -INFINITY;
  for (std::int64_t i = threadIdx.x; i < a.count(row); i += kRowThreads) top = fmaxf(top, a.logits_of(row, head)[i]);
  top = block_max(top, shared);
  if (threadIdx.x == 0) a.top[blockIdx.x] = top;
}

// A block per sequence: its scores above the threshold.
__global__ void __launch_bounds__(kRowThreads)
    count_wanted(const std::int64_t* first, const float* scores, std::int32_t kv_heads, float alpha, std::int64_t* wanted) {
  KVLAB_SHARED(std::int64_t, shared, 33);
  const std::int64_t row = std::int64_t{blockIdx.x} * kv_heads;
  std::int64_t mine = 0;
  for (std::int64_t i = first[row] + threadIdx.x; i < first[row + kv_heads]; i += kRowThreads) mine += scores[i] > -alpha ? 1 : 0;
  mine = block_sum(mine, shared);
  if (threadIdx.x == 0) wanted[blockIdx.x] = mine;
}

}  // namespace

void run_cuda(const PartialScores& a, CudaContext& cuda) {
  if (a.num_rows == 0 || a.first[a.num_rows] == a.first[0]) return;
  const CudaContext::Frame frame(cuda);
  std::vector<const float*> query;
  for (std::int32_t r = 0; r < a.num_rows; ++r) {
    const Queries& q = a.queries[r / a.kv_heads];
    query.push_back(q.data + (static_cast<std::int64_t>(q.count - 1) * a.kv_heads + r % a.kv_heads) * a.group * a.head_dim);
  }
  Partial p{};
  std::tie(p.query, p.basis, p.partial, p.first) = upload_all(cuda, std::span<const float* const>(query), host_array(a.basis, a.num_rows),
                                                              host_array(a.partial, a.num_rows), host_array(a.first, a.num_rows + 1));
  p.num_rows = a.num_rows, p.group = a.group, p.head_dim = a.head_dim, p.width = a.width, p.scores = a.scores;
  p.scale = 1.0F / std::sqrt(static_cast<float>(a.head_dim));
  const std::int64_t heads = std::int64_t{a.num_rows} * a.group;
  p.reduced = cuda.scratch<float>(heads * a.width), p.logits = cuda.scratch<float>(a.group * a.first[a.num_rows]);
  p.top = cuda.scratch<float>(heads);
  const std::int64_t longest = longest_row(a.first, a.num_rows);
  launch("partial_scores", cuda, warp_each(heads * a.width), reduce_queries, p);
  launch_over_rows("partial_scores", cuda, a.num_rows, longest, Logits{p});
  launch("partial_scores", cuda, block_each(heads), largest_logits, p);
  launch_over_rows("partial_scores", cuda, a.num_rows, longest, p);
}

void run_cuda(const FetchCounts& a, CudaContext& cuda) {
  if (a.num_rows == 0) return;
  const CudaContext::Frame frame(cuda);
  const std::int32_t sequences = a.num_rows / a.kv_heads;
  std::int64_t* const wanted = cuda.scratch<std::int64_t>(sequences);
  launch("fetch_counts", cuda, block_each(sequences), count_wanted, cuda.upload(a.first, a.num_rows + 1), a.scores, a.kv_heads, a.alpha,
         wanted);
  const std::vector<std::int64_t> host = download(cuda, wanted, sequences);
  for (std::int32_t r = 0; r < a.num_rows; ++r)
    a.count[r] = static_cast<std::int32_t>(
        std::min<std::int64_t>(std::max<std::int64_t>(host[static_cast<std::size_t>(r / a.kv_heads)] / a.kv_heads, 1), a.cap[r]));
}

}  // namespace kvlab
