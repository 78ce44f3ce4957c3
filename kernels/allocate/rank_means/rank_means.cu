
#include "kernels/allocate/rank_means/rank_means.h"
#include "kernels/device/cuda/row_tools.cuh"
#include "kernels/device/cuda/sort_rows.cuh"

namespace kvlab {

namespace {

struct FillKeys {
  const std::int64_t* first;
  const float* scores;
  std::uint32_t* keys;
  std::int64_t width;
  __device__ std::int64_t count(int) const { return width; }
  __device__ void operator()(int row, std::int64_t i) const {
    keys[row * width + i] = i < first[row + 1] - first[row] ? ordered_key(scores[first[row] + i]) : 0U;
  }
};

struct Mean {
  const std::int64_t* out_first;
  const std::uint32_t* keys;
  std::int64_t width;
  std::int32_t rows_per_pool;
  float* out;
  __device__ std::int64_t count(int pool) const { return out_first[pool + 1] - out_first[pool]; }
  __device__ void operator()(int pool, std::int64_t j) const {
    float sum = 0;
    for (int r = pool * rows_per_pool; r < (pool + 1) * rows_per_pool; ++r)
      sum += float_of_key(keys[r * width + j]) / static_cast<float>(rows_per_pool);
    out[out_first[pool] + j] = sum;
  }
};

}  // namespace

void run_cuda(const RankMeans& a, CudaContext& cuda) {
  const std::int64_t rows = std::int64_t{a.num_pools} * a.rows_per_pool, longest = longest_row(a.first, rows);
  if (longest == 0) return;
  const CudaContext::Frame frame(cuda);
  const auto [first, out_first] = upload_all(cuda, host_array(a.first, rows + 1), host_array(a.out_first, a.num_pools + 1));
  const std::int64_t width = sort_width(longest);
  auto* const keys = cuda.scratch<std::uint32_t>(rows * width);
  launch_over_rows("rank_means", cuda, rows, width, FillKeys{first, a.scores, keys, width});
  sort_rows("rank_means", cuda, keys, rows, width);
  launch_over_rows("rank_means", cuda, a.num_pools, longest_row(a.out_first, a.num_pools),
                   Mean{out_first, keys, width, a.rows_per_pool, a.out});
}

}  // namespace kvlab
