#include "kernels/device/cuda/device_parts.h"
#include "kernels/device/cuda/over_rows.cuh"
#include "kernels/merge/nearest_kept/nearest_kept.h"

namespace kvlab {

namespace {

struct Nearest {
  DeviceParts rows;
  std::int32_t* target;
  __device__ std::int64_t count(int row) const { return rows.num_dropped(row); }
  __device__ std::int32_t position(int row, std::int32_t token) const { return rows.kv.position[rows.kv.slot(row, token)]; }
  __device__ void operator()(int row, std::int64_t i) const {
    const std::int64_t at = rows.dropped_first[row] + i;
    const std::int32_t* const kept = rows.kept + rows.kept_first[row];
    const std::int32_t token = rows.dropped[at], n = rows.num_kept(row);
    std::int32_t next = 0, end = n;  // first kept token after the dropped one
    while (next < end) {
      const std::int32_t middle = next + (end - next) / 2;
      if (kept[middle] < token)
        next = middle + 1;
      else
        end = middle;
    }
    const bool behind =
        next < n && (next == 0 || position(row, kept[next]) - position(row, token) < position(row, token) - position(row, kept[next - 1]));
    target[at] = behind ? next : next - 1;
  }
};

}  // namespace

void run_cuda(const NearestAnchor& a, CudaContext& cuda) {
  if (a.rows.total_dropped() == 0) return;
  const CudaContext::Frame frame(cuda);
  const Nearest nearest{on_device(a.rows, cuda), a.target};
  launch_over_rows("nearest_anchor", cuda, a.rows.kv.num_rows, nearest.rows.most_dropped, nearest);
}

}  // namespace kvlab
