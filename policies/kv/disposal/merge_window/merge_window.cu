#include "kernels/device/cuda/device_parts.h"
#include "kernels/device/cuda/over_rows.cuh"
#include "kernels/device/cuda/vectors.cuh"
#include "kernels/rows/draw.h"
#include "policies/kv/disposal/merge_window/merge_window.h"

namespace kvlab {

namespace {

constexpr int kThreads = 128, kTogether = 4;  // kept tokens per loaded dropped value

// share [total_dropped]: each kept token's part of the dropped token's value, 0 if it does not join.
struct Join {
  DeviceParts rows;
  std::int32_t window;
  const float* mass;
  const std::int64_t* seeds;
  float* share;
  __device__ std::int64_t count(int row) const { return rows.num_dropped(row); }
  __device__ void operator()(int row, std::int64_t i) const {
    const std::int64_t at = rows.dropped_first[row] + i;
    const std::int32_t token = rows.dropped[at], next = token - static_cast<std::int32_t>(i);  // kept tokens before it
    const std::int32_t count = min(window, rows.num_kept(row) - next);
    const std::int32_t* const kept = rows.kept + rows.kept_first[row] + next;
    const float* const of_row = mass + rows.kv.first[row];
    share[at] = 0.0F;
    if (count <= 0) return;
    double sum = 0;
    for (std::int32_t j = 0; j < count; ++j) sum += static_cast<double>(of_row[kept[j]]);
    const double draw = uniform_draw(static_cast<std::uint64_t>(seeds[row / rows.kv.kv_heads]), Purpose::kMerge,
                                     static_cast<std::uint64_t>(row % rows.kv.kv_heads),
                                     static_cast<std::uint64_t>(static_cast<std::int64_t>(rows.kv.position[rows.kv.slot(row, token)])));
    if (draw * sum < static_cast<double>(of_row[token]) * count) share[at] = 1.0F / static_cast<float>(count);
  }
};

// Each block takes kTogether neighbouring kept tokens of a row, a channel per thread. Kept token j receives from the dropped tokens between
// kept tokens j - window and j; kept[k] - k dropped ones precede kept token k.
template <class T>
__global__ void __launch_bounds__(kThreads) add_shares(DeviceParts rows, std::int32_t window, const float* share, int blocks) {
  const int row = blockIdx.x / blocks, d = rows.kv.head_dim;
  const std::int32_t j0 = blockIdx.x % blocks * kTogether, num_kept = rows.num_kept(row);
  if (j0 >= num_kept) return;
  const std::int32_t* const kept = rows.kept + rows.kept_first[row];
  T* const v = static_cast<T*>(rows.kv.v);
  std::int32_t begin[kTogether], end[kTogether], last = 0;
#pragma unroll
  for (int j = 0; j < kTogether; ++j) {
    const std::int32_t k = j0 + j, from = k - window;
    const bool is = k < num_kept;
    begin[j] = is && from >= 0 ? kept[from] - from : 0;
    end[j] = is ? kept[k] - k : 0;
    last = max(last, end[j]);
  }
  for (int c = threadIdx.x; c < d; c += kThreads) {
    float sum[kTogether] = {};
    for (std::int32_t i = begin[0]; i < last; ++i) {
      const std::int64_t at = rows.dropped_first[row] + i;
      const float part = share[at];
      if (part == 0.0F) continue;
      const float x = load_float(v + rows.kv.slot(row, rows.dropped[at]) * d + c) * part;
#pragma unroll
      for (int j = 0; j < kTogether; ++j) sum[j] += begin[j] <= i && i < end[j] ? x : 0.0F;
    }
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      if (begin[j] >= end[j]) continue;
      T* const to = v + rows.kv.slot(row, kept[j0 + j]) * d + c;
      store_float(to, load_float(to) + sum[j]);
    }
  }
}

}  // namespace

void run_cuda(const MergeWindow& a, CudaContext& cuda) {
  if (a.rows.total_dropped() == 0 || a.rows.total_kept() == 0) return;
  const CudaContext::Frame frame(cuda);
  const DeviceParts rows = on_device(a.rows, cuda);
  float* const share = cuda.scratch<float>(a.rows.total_dropped());
  launch_over_rows("merge_window", cuda, rows.kv.num_rows, rows.most_dropped,
                   Join{rows, a.window, a.mass, cuda.upload(a.seeds, a.rows.kv.num_sequences()), share});
  const auto blocks = static_cast<int>(ceil_div(rows.most_kept, kTogether));
  for_type(a.rows.kv.type, [&](auto zero) {
    launch("merge_window", cuda, {dim3(static_cast<unsigned>(std::int64_t{rows.kv.num_rows} * blocks)), dim3(kThreads)},
           add_shares<decltype(zero)>, rows, a.window, static_cast<const float*>(share), blocks);
  });
}

}  // namespace kvlab
