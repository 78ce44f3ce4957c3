#include "kernels/device/cuda/device_rows.h"
#include "kernels/device/cuda/over_rows.cuh"
#include "policies/kv/scorer/protect_span/protect_span.h"

namespace kvlab {

namespace {

struct Set {
  DeviceRows kv;
  std::int32_t begin, end;
  float* scores;
  float value;
  __device__ std::int64_t count(int row) const { return kv.len[row]; }
  __device__ void operator()(int row, std::int64_t i) const {
    const std::int32_t position = kv.position[kv.slot(row, static_cast<std::int32_t>(i))];
    if (position >= begin && position < end) scores[kv.first[row] + i] = value;
  }
};

}  // namespace

void run_cuda(const ProtectSpan& a, CudaContext& cuda) {
  if (a.kv.total() == 0) return;
  const CudaContext::Frame frame(cuda);
  const Set set{on_device(a.kv, cuda), a.begin, a.end, a.scores, a.value};
  launch_over_rows("protect_span", cuda, a.kv.num_rows, set.kv.longest, set);
}

}  // namespace kvlab
