#include "kernels/device/cuda/device_parts.h"
#include "kernels/device/cuda/over_rows.cuh"
#include "kernels/select/list_dropped/list_dropped.h"

namespace kvlab {

namespace {

// The j-th dropped token is j plus the kept tokens before it; kept token k has kept[k] - k dropped ones before it.
struct List {
  DeviceParts rows;
  std::int32_t* out;
  __device__ std::int64_t count(int row) const { return rows.num_dropped(row); }
  __device__ void operator()(int row, std::int64_t j) const {
    const std::int32_t* const kept = rows.kept + rows.kept_first[row];
    std::int32_t begin = 0, end = rows.num_kept(row);
    while (begin < end) {
      const std::int32_t middle = begin + (end - begin) / 2;
      if (kept[middle] - middle <= j)
        begin = middle + 1;
      else
        end = middle;
    }
    out[rows.dropped_first[row] + j] = static_cast<std::int32_t>(j) + begin;
  }
};

}  // namespace

void run_cuda(const ListDropped& a, CudaContext& cuda) {
  if (a.rows.total_dropped() == 0) return;
  const CudaContext::Frame frame(cuda);
  const List list{on_device(a.rows, cuda), a.dropped};
  launch_over_rows("list_dropped", cuda, a.rows.kv.num_rows, list.rows.most_dropped, list);
}

}  // namespace kvlab
