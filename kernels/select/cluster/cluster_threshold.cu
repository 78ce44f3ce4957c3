#include <algorithm>
#include <cmath>

#include "kernels/device/cuda/row_tools.cuh"
#include "kernels/device/cuda/sort_rows.cuh"
#include "kernels/select/cluster/cluster.h"
#include "kernels/select/page_scores/page_scores.h"

namespace kvlab {

namespace {

constexpr int kThreads = 512;

struct Line {
  const float* weights;
  const std::int32_t* sizes;
  std::int64_t at;  // in the sorted array: sequence * width + place
  std::int32_t n;
};

// Weight in the high half, place in the low half, earlier is larger. Skips clusters without tokens.
struct FillKeys {
  const Line* lines;
  std::int64_t width;
  std::uint64_t* keys;
  std::int32_t* sizes;
  __device__ std::int64_t count(int line) const { return lines[line].n; }
  __device__ void operator()(int line, std::int64_t c) const {
    const Line& l = lines[line];
    const std::int64_t at = l.at + c;
    sizes[at] = l.sizes[c];
    if (l.sizes[c] > 0) keys[at] = std::uint64_t{ordered_key(l.weights[c])} << 32 | ~static_cast<std::uint32_t>(at % width);
  }
};

// First weight in descending order with tokens that do not fit. One block per sequence.
__global__ void __launch_bounds__(kThreads) find_threshold(const std::uint64_t* keys, const std::int32_t* sizes, std::int64_t width,
                                                           const double* keep_frac, float* const* threshold) {
  KVLAB_SHARED(std::int64_t, shared, 33);
  const std::uint64_t* const mine = keys + blockIdx.x * width;
  const std::int32_t* const of_mine = sizes + blockIdx.x * width;
  const auto size_at = [&](std::int64_t i) -> std::int64_t {
    return i < width && mine[i] != 0 ? of_mine[~static_cast<std::uint32_t>(mine[i])] : 0;
  };
  std::int64_t tokens = 0;
  for (std::int64_t i = threadIdx.x; i < width; i += kThreads) tokens += size_at(i);
  tokens = block_sum(tokens, shared);
  if (tokens == 0) return;
  const double room = keep_frac[blockIdx.x] * static_cast<double>(tokens);
  if (threadIdx.x == 0) *threshold[blockIdx.x] = -1.0F;
  __syncthreads();
  std::int64_t taken = 0;
  for (std::int64_t at = 0; at < width; at += kThreads) {
    const std::int64_t i = at + threadIdx.x, size = size_at(i);
    std::int64_t all;
    const std::int64_t before = taken + block_scan_exclusive(size, shared, all);
    if (static_cast<double>(before) <= room && static_cast<double>(before + size) > room)
      *threshold[blockIdx.x] = float_of_key(static_cast<std::uint32_t>(mine[i] >> 32));
    taken += all;
  }
}

std::int64_t weighed(const ClusterThreshold& a, std::int32_t s) {
  std::int64_t n = 0;
  for (std::int32_t r = s * a.kv_heads; r < (s + 1) * a.kv_heads; ++r) n += std::int64_t{a.queries[s].count} * a.clusters[r];
  return n;
}

}  // namespace

void run_cuda(const ClusterThreshold& a, CudaContext& cuda) {
  const std::int32_t sequences = a.num_rows / a.kv_heads;
  std::int64_t most = 0, all = 0;
  for (std::int32_t s = 0; s < sequences; ++s) most = std::max(most, weighed(a, s)), all += weighed(a, s);
  if (all == 0) return;
  const CudaContext::Frame frame(cuda);
  const std::int64_t width = sort_width(most);
  float *logits = cuda.scratch<float>(all * a.group), *weights = cuda.scratch<float>(all);
  std::vector<UnitRow> scored;
  std::vector<SoftmaxRow> softened;
  std::vector<Line> lines;
  std::int32_t largest = 0;
  for (std::int32_t s = 0; s < sequences; ++s) {
    std::int64_t at = s * width;
    for (std::int32_t i = 0; i < a.kv_heads * a.queries[s].count; ++i) {
      const std::int32_t head = i / a.queries[s].count, t = i % a.queries[s].count, row = s * a.kv_heads + head, n = a.clusters[row];
      if (n == 0) continue;
      const float* const query = a.queries[s].data + (static_cast<std::int64_t>(t) * a.kv_heads + head) * a.group * a.head_dim;
      scored.push_back({query, a.centroids[row], nullptr, logits, n});
      softened.push_back({logits, weights, nullptr, a.sizes[row], n});
      lines.push_back({weights, a.sizes[row], at, n});
      logits += std::int64_t{a.group} * n, weights += n, at += n, largest = std::max(largest, n);
    }
  }
  const UnitScores dots{
      a.group, a.head_dim, UnitScores::Kind::kDot, UnitScores::Heads::kEach, 0, 1.0F / std::sqrt(static_cast<float>(a.head_dim))};
  const char* const name = "cluster_threshold";
  score_units(name, dots, scored, cuda);
  soften_rows(name, softened, a.group, UnitScores::Heads::kMean, cuda);
  auto* const keys = cuda.scratch<std::uint64_t>(sequences * width);
  auto* const sizes = cuda.scratch<std::int32_t>(sequences * width);
  cuda::fill(keys, 0, sequences * width * 8, cuda.stream());
  const auto [device_lines, keep_frac, threshold] =
      upload_all(cuda, std::span<const Line>(lines), host_array(a.keep_frac, sequences), host_array(a.threshold, sequences));
  launch_over_rows(name, cuda, static_cast<std::int64_t>(lines.size()), largest, FillKeys{device_lines, width, keys, sizes});
  sort_rows(name, cuda, keys, sequences, width);
  launch(name, cuda, {dim3(static_cast<unsigned>(sequences)), dim3(kThreads)}, find_threshold, static_cast<const std::uint64_t*>(keys),
         static_cast<const std::int32_t*>(sizes), width, keep_frac, threshold);
}

}  // namespace kvlab
