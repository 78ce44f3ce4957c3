#include "kernels/device/cuda/device_parts.h"
#include "kernels/device/cuda/listed_sums.cuh"
#include "policies/kv/disposal/mean_dropped/mean_dropped.h"

namespace kvlab {

namespace {

constexpr int kThreads = 128;

struct Dropped {
  static constexpr bool kScales = false;
  const std::int64_t* first;
  const std::int32_t* dropped;
  __device__ std::int32_t count(int row) const { return static_cast<std::int32_t>(first[row + 1] - first[row]); }
  __device__ std::int32_t token(int row, std::int32_t i) const { return dropped[first[row] + i]; }
};

// One block per row: what was in the means before and the new sums, as doubles.
__global__ void __launch_bounds__(kThreads)
    update_means(const float* partial, int chunks, int d, Dropped rows, const std::int32_t* line, const std::int32_t* before, float* mean) {
  const int row = blockIdx.x, count = rows.count(row);
  if (count == 0) return;
  float* const mine = mean + std::int64_t{line[row]} * d;
  for (int c = threadIdx.x; c < d; c += kThreads) {
    double sum = before[row] == 0 ? 0 : static_cast<double>(mine[c]) * before[row];
    for (int i = 0; i < chunks && i * kTokenChunk < count; ++i)
      sum += static_cast<double>(partial[(std::int64_t{row} * chunks + i) * d + c]);
    mine[c] = static_cast<float>(sum / (before[row] + static_cast<double>(count)));
  }
}

}  // namespace

void run_cuda(const MeanDropped& a, CudaContext& cuda) {
  if (a.rows.total_dropped() == 0) return;
  const CudaContext::Frame frame(cuda);
  const DeviceParts rows = on_device(a.rows, cuda);
  const auto [line, before] = upload_all(cuda, host_array(a.line, rows.kv.num_rows), host_array(a.before, rows.kv.num_rows));
  const auto chunks = static_cast<int>(ceil_div(rows.most_dropped, kTokenChunk));
  const Dropped dropped{rows.dropped_first, rows.dropped};
  for (const bool values : {false, true}) {
    const float* const partial = launch_listed_sums("mean_dropped", cuda, rows.kv, a.rows.kv.type, values, chunks, dropped);
    launch("mean_dropped", cuda, {dim3(static_cast<unsigned>(rows.kv.num_rows)), dim3(kThreads)}, update_means, partial, chunks,
           rows.kv.head_dim, dropped, line, before, values ? a.v_mean : a.k_mean);
  }
}

}  // namespace kvlab
