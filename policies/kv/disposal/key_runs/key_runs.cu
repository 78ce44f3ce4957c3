#include "kernels/device/cuda/device_parts.h"
#include "kernels/device/cuda/over_rows.cuh"
#include "kernels/device/cuda/row_tools.cuh"
#include "policies/kv/disposal/key_runs/key_links.cuh"
#include "policies/kv/disposal/key_runs/key_runs.h"

namespace kvlab {

namespace {

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
  const std::uint8_t* const linked = find_links("key_runs", cuda, a.rows.kv, rows.kv, a.min_cosine);
  launch_over_rows("key_runs", cuda, rows.kv.num_rows, rows.most_dropped, Runs{rows, linked, a.target});
}

}  // namespace kvlab
