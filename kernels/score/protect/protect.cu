#include <algorithm>

#include "kernels/device/cuda/device_rows.h"
#include "kernels/device/cuda/over_rows.cuh"
#include "kernels/device/cuda/upload.h"
#include "kernels/score/protect/protect.h"

namespace kvlab {

namespace {

struct Set {
  DeviceRows kv;
  std::int32_t sinks, recent;
  const std::int32_t *end_position, *all_before;
  float* scores;
  float value;
  __device__ std::int64_t count(int row) const { return kv.len[row]; }
  __device__ void operator()(int row, std::int64_t i) const {
    const int s = row / kv.kv_heads;
    const std::int32_t position = kv.position[kv.slot(row, static_cast<std::int32_t>(i))];
    const std::int32_t front = max(sinks, all_before == nullptr ? 0 : all_before[s]);
    if (position < front || position >= end_position[s] - recent) scores[kv.first[row] + i] = value;
  }
};

}  // namespace

void run_cuda(const Protect& a, CudaContext& cuda) {
  if (a.kv.total() == 0) return;
  const CudaContext::Frame frame(cuda);
  const std::int64_t sequences = a.kv.num_sequences();
  const auto [end, before] = upload_all(cuda, host_array(a.end_position, sequences), host_array(a.all_before, sequences));
  const Set set{on_device(a.kv, cuda), a.sinks, a.recent, end, before, a.scores, a.value};
  launch_over_rows("protect", cuda, a.kv.num_rows, set.kv.longest, set);
}

}  // namespace kvlab
