#include "kernels/device/cuda/download.h"
#include "kernels/device/cuda/row_tools.cuh"
#include "kernels/device/cuda/unit_list.h"
#include "kernels/device/cuda/upload.h"
#include "policies/kv/selector/tier_reuse/tier_reuse.h"

namespace kvlab {

namespace {

// One block per row.
__global__ void __launch_bounds__(kRowThreads)
    count_reuse(const UnitList* asked, const UnitList* now, std::int32_t* const* last, const std::int32_t* last_count,
                const std::int32_t* held_from, std::int32_t* hits) {
  KVLAB_SHARED(std::int32_t, shared, 33);
  const int row = blockIdx.x;
  std::int32_t* const was = last[row];
  std::int32_t mine = 0;
  for (std::int64_t i = threadIdx.x; i < asked[row].n; i += kRowThreads) {
    const std::int32_t unit = asked[row].unit[i];
    const bool is_held = held_from != nullptr && unit >= held_from[row];
    mine += is_held || is_among(was, last_count[row], unit) ? 1 : 0;
  }
  mine = block_sum(mine, shared);  // a barrier: the old list has been read
  if (threadIdx.x == 0) hits[row] = mine;
  for (std::int64_t i = threadIdx.x; i < now[row].n; i += kRowThreads) was[i] = now[row].unit[i];
}

}  // namespace

void run_cuda(const TierReuse& a, CudaContext& cuda) {
  if (a.num_rows == 0) return;
  const CudaContext::Frame frame(cuda);
  const std::vector<UnitList> asked = unit_list_of(a.asked, a.num_rows), now = unit_list_of(a.now, a.num_rows);
  const auto [device_asked, device_now, last, last_count, held_from] =
      upload_all(cuda, std::span(asked), std::span(now), host_array(a.last, a.num_rows), host_array(a.last_count, a.num_rows),
                 host_array(a.held_from, a.num_rows));
  std::int32_t* const hits = cuda.scratch<std::int32_t>(a.num_rows);
  launch("tier_reuse", cuda, block_each(a.num_rows), count_reuse, device_asked, device_now, last, last_count, held_from, hits);
  const std::vector<std::int32_t> host = download(cuda, hits, a.num_rows);
  std::copy(host.begin(), host.end(), a.hits);
}

}  // namespace kvlab
