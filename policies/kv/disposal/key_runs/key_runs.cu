#include "kernels/device/cuda/device_parts.h"
#include "kernels/device/cuda/over_rows.cuh"
#include "kernels/device/cuda/row_tools.cuh"
#include "policies/kv/disposal/key_runs/key_runs.h"

namespace kvlab {

namespace {

// linked [total]: whether a token belongs with the one before it. A warp per token.
template <class T>
__global__ void __launch_bounds__(kRowThreads) find_links(DeviceRows kv, double min_cosine, std::uint8_t* linked, int chunks) {
  const int row = blockIdx.x / chunks;
  const std::int32_t i = static_cast<std::int32_t>(blockIdx.x) % chunks * (kRowThreads / kWarpSize) + warp_index();
  if (i >= kv.len[row]) return;
  const T *const key = key_at<T>(kv, row, i), *const before = key_at<T>(kv, row, max(0, i - 1));
  double square = 0, square_before = 0, product = 0;
  for (int c = lane_index(); c < kv.head_dim; c += kWarpSize) {
    const double x = load_float(key + c), y = load_float(before + c);
    square += x * x, square_before += y * y, product += x * y;
  }
  const double norms = sqrt(warp_sum(square)) * sqrt(warp_sum(square_before));
  product = warp_sum(product);
  if (lane_index() == 0) linked[kv.first[row] + i] = i > 0 && norms > 0 && product >= min_cosine * norms ? 1 : 0;
}

struct Runs {
  DeviceParts rows;
  const std::uint8_t* linked;
  std::int32_t* target;
  __device__ std::int64_t count(int row) const { return rows.num_dropped(row); }
  __device__ void operator()(int row, std::int64_t at) const {
    const std::int32_t* const dropped = rows.dropped + rows.dropped_first[row];
    const std::int32_t* const kept = rows.kept + rows.kept_first[row];
    const std::int32_t n = rows.kv.len[row], last = rows.num_dropped(row) - 1;
    const auto is_linked = [&](std::int32_t token) { return token < n && linked[rows.kv.first[row] + token] != 0; };
    // Along the links to the ends of the gap between kept tokens; steps, or -1 where they break off.
    const auto j = static_cast<std::int32_t>(at);
    std::int32_t left = j, right = j;
    while (is_linked(dropped[left]) && left > 0 && dropped[left - 1] + 1 == dropped[left]) --left;
    while (is_linked(dropped[right] + 1) && right < last && dropped[right] + 1 == dropped[right + 1]) ++right;
    const bool to_left = is_linked(dropped[left]), to_right = is_linked(dropped[right] + 1);
    const std::int32_t before = count_below(kept, rows.num_kept(row), dropped[j]);  // kept tokens before the gap
    target[rows.dropped_first[row] + j] = to_left && (!to_right || j - left <= right - j) ? before - 1 : to_right ? before : -1;
  }
};

}  // namespace

void run_cuda(const KeyRuns& a, CudaContext& cuda) {
  if (a.rows.total_dropped() == 0) return;
  const CudaContext::Frame frame(cuda);
  const DeviceParts rows = on_device(a.rows, cuda);
  auto* const linked = cuda.scratch<std::uint8_t>(rows.kv.total);
  const auto chunks = static_cast<int>(ceil_div(rows.kv.longest, kRowThreads / kWarpSize));
  for_type(a.rows.kv.type, [&](auto zero) {
    launch("key_runs", cuda, block_each(std::int64_t{rows.kv.num_rows} * chunks), find_links<decltype(zero)>, rows.kv,
           static_cast<double>(a.min_cosine), linked, chunks);
  });
  launch_over_rows("key_runs", cuda, rows.kv.num_rows, rows.most_dropped, Runs{rows, linked, a.target});
}

}  // namespace kvlab
