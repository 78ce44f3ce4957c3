#include <algorithm>

#include "kernels/device/cuda/block_choose.cuh"
#include "kernels/device/cuda/row_tools.cuh"
#include "kernels/device/cuda/upload.h"
#include "policies/kv/selector/chunk_outliers/chunk_outliers.h"

namespace kvlab {

namespace {

struct Fits {
  DeviceRows kv;
  std::int32_t chunk_tokens, most_chunks;
  const std::int32_t *chosen, *chunks, *outliers;
  const float* const* means;
  std::int32_t* const* outlier;
  std::int32_t* const* other;
  float* fit;  // [num_rows, most_chunks]
};

// A warp per chunk.
template <class T>
__global__ void __launch_bounds__(kRowThreads) fit_chunks(Fits a) {
  const std::int64_t item = warp_item();
  const auto row = static_cast<int>(item / a.most_chunks), chunk = static_cast<int>(item % a.most_chunks);
  if (row >= a.kv.num_rows || a.chosen[row] == 0 || chunk >= a.chunks[row]) return;
  const int d = a.kv.head_dim;
  const float* const mean = a.means[row] + std::int64_t{chunk} * d;
  const float size = sqrtf(warp_dot(mean, mean, d));
  float worst = 1;
  for (std::int32_t i = chunk * a.chunk_tokens; i < (chunk + 1) * a.chunk_tokens; ++i) {
    const T* const key = key_at<T>(a.kv, row, i);
    worst = fminf(worst, warp_dot(key, mean, d) / fmaxf(sqrtf(warp_dot(key, key, d)) * size, 1e-20F));
  }
  if (lane_index() == 0) a.fit[item] = worst;
}

// One block per row.
__global__ void __launch_bounds__(kRowThreads) part_chunks(Fits a) {
  KVLAB_SHARED(std::int32_t, counts, 33);
  KVLAB_SHARED(std::uint64_t, sums, 33);
  const int row = blockIdx.x;
  if (a.chosen[row] == 0) return;
  const float* const fit = a.fit + std::int64_t{row} * a.most_chunks;
  const auto key = [&](std::int32_t i) { return ~ordered_key(fit[i]); };  // the worst first
  const BlockCut cut = block_cut(a.chunks[row], a.outliers[row], key, counts);
  block_choose(a.chunks[row], cut, key, sums, [&](std::int32_t i, bool chosen, std::int32_t before) {
    if (chosen)
      a.outlier[row][before] = i;
    else
      a.other[row][i - before] = i;
  });
}

}  // namespace

void run_cuda(const ChunkOutliers& a, CudaContext& cuda) {
  const std::int32_t rows = a.kv.num_rows, most = rows == 0 ? 0 : *std::max_element(a.chunks, a.chunks + rows);
  if (most == 0) return;
  const CudaContext::Frame frame(cuda);
  Fits f{};
  f.kv = on_device(a.kv, cuda), f.chunk_tokens = a.chunk_tokens, f.most_chunks = most;
  std::tie(f.chosen, f.chunks, f.outliers, f.means, f.outlier, f.other) =
      upload_all(cuda, host_array(a.chosen, rows), host_array(a.chunks, rows), host_array(a.outliers, rows), host_array(a.means, rows),
                 host_array(a.outlier, rows), host_array(a.other, rows));
  f.fit = cuda.scratch<float>(std::int64_t{rows} * most);
  for_type(a.kv.type,
           [&](auto zero) { launch("chunk_outliers", cuda, warp_each(std::int64_t{rows} * most), fit_chunks<decltype(zero)>, f); });
  launch("chunk_outliers", cuda, block_each(rows), part_chunks, f);
}

}  // namespace kvlab
