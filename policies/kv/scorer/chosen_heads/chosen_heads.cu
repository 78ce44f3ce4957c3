#include <algorithm>

#include "kernels/attention/attention_stats/attention_stats.h"
#include "kernels/device/cuda/row_tools.cuh"
#include "policies/kv/scorer/chosen_heads/chosen_heads.h"

namespace kvlab {

namespace {

struct HeadSums {
  DeviceRows kv;
  const float* sums;  // of query heads apart
  __device__ const float* sums_of(int row, int head) const { return sums + kv.group * kv.first[row] + std::int64_t{head} * kv.len[row]; }
};

// chosen [num_sequences, num_heads], `paid` [num_sequences, q_heads]. One block per sequence.
__global__ void __launch_bounds__(kRowThreads)
    choose_heads(HeadSums a, std::int32_t sinks, std::int32_t recent, std::int32_t num_heads, float* paid, std::int32_t* chosen) {
  KVLAB_SHARED(float, shared, 33);
  const int group = a.kv.group, heads = a.kv.kv_heads * group, row0 = blockIdx.x * a.kv.kv_heads;
  float* const mine = paid + std::int64_t{blockIdx.x} * heads;
  for (int h = 0; h < heads; ++h) {
    const std::int32_t n = a.kv.len[row0 + h / group], begin = min(sinks, n), end = max(begin, n - recent);
    const float* const sums = a.sums_of(row0 + h / group, h % group);
    float sum = 0;
    for (std::int32_t i = begin + static_cast<std::int32_t>(threadIdx.x); i < end; i += kRowThreads) sum += sums[i];
    sum = block_sum(sum, shared);
    if (threadIdx.x == 0) mine[h] = sum;
  }
  __syncthreads();
  for (int h = threadIdx.x; h < heads; h += kRowThreads) {
    int better = 0;
    for (int other = 0; other < heads; ++other) better += mine[other] > mine[h] || (mine[other] == mine[h] && other < h) ? 1 : 0;
    if (better < num_heads) chosen[std::int64_t{blockIdx.x} * num_heads + better] = h;
  }
}

struct MeanOfHeads {
  HeadSums a;
  const std::int32_t* chosen;
  std::int32_t num_heads;
  bool per_sequence;
  float* scores;
  __device__ std::int64_t count(int row) const { return a.kv.len[row]; }
  __device__ void operator()(int row, std::int64_t i) const {
    const DeviceRows& kv = a.kv;
    const int sequence = row / kv.kv_heads;
    const std::int32_t* const heads = per_sequence ? chosen + std::int64_t{sequence} * num_heads : chosen;
    float mean = 0;
    for (int j = 0; j < num_heads; ++j)
      mean += a.sums_of(sequence * kv.kv_heads + heads[j] / kv.group, heads[j] % kv.group)[i] / static_cast<float>(num_heads);
    scores[kv.first[row] + i] = mean;
  }
};

}  // namespace

void run_cuda(const ChosenHeads& a, CudaContext& cuda) {
  if (a.kv.total() == 0) return;
  const CudaContext::Frame frame(cuda);
  const DeviceRows kv = on_device(a.kv, cuda);
  const HeadsApart apart(a.kv);
  float* const of_heads = cuda.scratch<float>(apart.kv.total());
  cuda::fill(of_heads, 0, 4 * apart.kv.total(), cuda.stream());
  run_cuda(AttentionStats{.kv = apart.kv, .queries = a.queries, .sum = of_heads}, cuda);
  const HeadSums sums{kv, of_heads};
  const std::int32_t sequences = a.kv.num_sequences(), q_heads = kv.kv_heads * kv.group;
  const std::int32_t num_heads = a.heads == nullptr ? std::min(q_heads, a.num_heads) : a.num_heads;
  const std::int32_t* chosen = cuda.upload(a.heads, num_heads);
  if (chosen == nullptr) {
    std::int32_t* const found = cuda.scratch<std::int32_t>(std::int64_t{sequences} * num_heads);
    launch("chosen_heads", cuda, block_each(sequences), choose_heads, sums, a.sinks, a.recent, num_heads,
           cuda.scratch<float>(std::int64_t{sequences} * q_heads), found);
    chosen = found;
  }
  launch_over_rows("chosen_heads", cuda, kv.num_rows, kv.longest, MeanOfHeads{sums, chosen, num_heads, a.heads == nullptr, a.scores});
}

}  // namespace kvlab
