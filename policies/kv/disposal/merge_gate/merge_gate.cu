#include <algorithm>

#include "kernels/device/cuda/device_parts.h"
#include "kernels/device/cuda/over_rows.cuh"
#include "policies/kv/disposal/merge_gate/merge_gate.h"

namespace kvlab {

namespace {

constexpr int kThreads = 512;

// thresholds [sequences], in and out. One block per sequence.
__global__ void __launch_bounds__(kThreads) update_thresholds(const std::int64_t* first, int heads, const float* similarity,
                                                              const std::int32_t* target, float share, float* thresholds) {
  KVLAB_SHARED(double, shared, 33);
  const std::int64_t begin = first[blockIdx.x * heads], end = first[(blockIdx.x + 1) * heads];
  double sum = 0, count = 0;
  for (std::int64_t i = begin + threadIdx.x; i < end; i += kThreads) {
    if (target[i] < 0) continue;
    sum += static_cast<double>(similarity[i]);
    count += 1;
  }
  sum = block_sum(sum, shared), count = block_sum(count, shared);
  if (threadIdx.x != 0 || count == 0) return;
  const auto mean = static_cast<float>(sum / count);
  const float before = thresholds[blockIdx.x];
  thresholds[blockIdx.x] = before < -1.0F ? mean : __fadd_rn(__fmul_rn(1.0F - share, before), __fmul_rn(share, mean));
}

// Dropped tokens of equal place in their rows' lists, one sequence after the other.
struct Gate {
  const std::int64_t* first;
  int heads;
  const float *similarity, *thresholds;  // thresholds [sequences], null: fixed
  float fixed;
  bool head_mean;
  std::int32_t* target;

  __device__ std::int64_t dropped(int row) const { return first[row + 1] - first[row]; }
  __device__ std::int64_t count(int sequence) const {
    std::int64_t most = 0;
    for (int r = sequence * heads; r < (sequence + 1) * heads; ++r) most = max(most, dropped(r));
    return most;
  }
  __device__ float mean(int sequence, std::int64_t j) const {
    double sum = 0;
    int n = 0;
    for (int r = sequence * heads; r < (sequence + 1) * heads; ++r) {
      if (j >= dropped(r) || target[first[r] + j] < 0) continue;
      sum += static_cast<double>(similarity[first[r] + j]);
      ++n;
    }
    return n == 0 ? 0.0F : static_cast<float>(sum / n);
  }
  __device__ void operator()(int sequence, std::int64_t j) const {
    const float threshold = thresholds != nullptr ? thresholds[sequence] : fixed, together = head_mean ? mean(sequence, j) : 0.0F;
    for (int r = sequence * heads; r < (sequence + 1) * heads; ++r) {
      if (j >= dropped(r)) continue;
      if (!((head_mean ? together : similarity[first[r] + j]) >= threshold)) target[first[r] + j] = -1;
    }
  }
};

}  // namespace

void run_cuda(const MergeGate& a, CudaContext& cuda) {
  const std::int64_t sequences = a.rows.kv.num_sequences();
  if (a.rows.total_dropped() == 0) return;
  const CudaContext::Frame frame(cuda);
  std::vector<float> now;
  for (std::int64_t s = 0; s < (a.running ? sequences : 0); ++s) now.push_back(a.thresholds[a.threshold_of[s]]);
  const auto [first, before] = upload_all(cuda, host_array(a.rows.dropped_first, a.rows.kv.num_rows + 1), std::span<const float>(now));
  float* const thresholds = a.running ? const_cast<float*>(before) : nullptr;
  const int heads = a.rows.kv.kv_heads;
  if (a.running)
    launch("merge_gate", cuda, {dim3(static_cast<unsigned>(sequences)), dim3(kThreads)}, update_thresholds, first, heads, a.similarity,
           static_cast<const std::int32_t*>(a.target), a.share, thresholds);
  launch_over_rows("merge_gate", cuda, sequences, longest_row(a.rows.dropped_first, a.rows.kv.num_rows),
                   Gate{first, heads, a.similarity, thresholds, a.fixed, a.head_mean, a.target});
  if (!a.running) return;
  cuda::to_host(now.data(), thresholds, 4 * sequences, cuda.stream());
  cuda.synchronize();
  for (std::int64_t s = 0; s < sequences; ++s) a.thresholds[a.threshold_of[s]] = now[static_cast<std::size_t>(s)];
}

}  // namespace kvlab
