#include <algorithm>

#include "kernels/device/cuda/launch.cuh"
#include "kernels/device/cuda/upload.h"
#include "kernels/score/chunk_pool/chunk_pool.h"

namespace kvlab {

namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarpSize;

struct Chunks {
  const std::int64_t* first;
  const std::int32_t *begin, *len;
  float* scores;
  std::int32_t chunk_tokens, unit_tokens;
  ChunkPool::Kind kind;
  int blocks;  // per row
};

// A score counts that fewer than half of the others precede, in descending order.
__device__ __forceinline__ float sum_top_half(const float* chunk, int n) {
  float sum = 0;
  for (int i = lane_index(); i < n; i += kWarpSize) {
    const float x = chunk[i];
    int before = 0;
    for (int j = 0; j < n; ++j) before += chunk[j] > x || (chunk[j] == x && j < i) ? 1 : 0;
    if (before < (n + 1) / 2) sum += x;
  }
  return warp_sum(sum);
}

// A unit per lane, in the CPU's order.
__device__ __forceinline__ float best_unit(const float* chunk, int n, int unit_tokens) {
  float best = -INFINITY;
  for (int unit = lane_index() * unit_tokens; unit < n; unit += kWarpSize * unit_tokens) {
    float sum = 0;
    for (int i = unit; i < unit + unit_tokens; ++i) sum += chunk[i];
    best = fmaxf(best, sum / static_cast<float>(unit_tokens));
  }
  return warp_max(best);
}

// A warp per chunk.
__global__ void __launch_bounds__(kThreads) pool_chunks(Chunks a) {
  const int row = blockIdx.x / a.blocks;
  const std::int64_t at = (std::int64_t{blockIdx.x % a.blocks} * kWarps + warp_index()) * a.chunk_tokens;
  if (at >= a.len[row]) return;
  float* const chunk = a.scores + a.first[row] + (a.begin == nullptr ? 0 : a.begin[row]) + at;
  const auto n = static_cast<int>(min(std::int64_t{a.chunk_tokens}, a.len[row] - at));
  float sum = 0;
  if (a.kind == ChunkPool::Kind::kMeanOfTopHalf) {
    sum = sum_top_half(chunk, n) / static_cast<float>((n + 1) / 2);
  } else if (a.kind == ChunkPool::Kind::kBestUnit) {
    sum = best_unit(chunk, n, a.unit_tokens);
  } else {
    for (int i = lane_index(); i < n; i += kWarpSize) sum += chunk[i];
    sum = warp_sum(sum);
  }
  if (a.kind == ChunkPool::Kind::kShare && sum == 0.0F) return;
  if (a.kind == ChunkPool::Kind::kMean) sum /= static_cast<float>(n);
  __syncwarp();  // all have read the chunk
  for (int i = lane_index(); i < n; i += kWarpSize) chunk[i] = a.kind == ChunkPool::Kind::kShare ? chunk[i] / sum : sum;
}

}  // namespace

void run_cuda(const ChunkPool& a, CudaContext& cuda) {
  if (a.peer_sums) throw CudaError("chunk_pool: peer_sums, the order of additions of another library, runs on the CPU alone");
  const std::int64_t longest = a.num_rows == 0 ? 0 : *std::max_element(a.len, a.len + a.num_rows);
  if (longest == 0) return;
  const CudaContext::Frame frame(cuda);
  const auto [first, begin, len] =
      upload_all(cuda, host_array(a.first, a.num_rows + 1), host_array(a.begin, a.num_rows), host_array(a.len, a.num_rows));
  const auto blocks = static_cast<int>(ceil_div(ceil_div(longest, a.chunk_tokens), kWarps));
  launch(call(a).op.data(), cuda, {dim3(static_cast<unsigned>(std::int64_t{a.num_rows} * blocks)), dim3(kThreads)}, pool_chunks,
         Chunks{first, begin, len, a.scores, a.chunk_tokens, a.unit_tokens, a.kind, blocks});
}

}  // namespace kvlab
