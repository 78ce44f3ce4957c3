#include "kernels/device/cuda/row_tools.cuh"
#include "kernels/device/cuda/upload.h"
#include "kernels/model/scatter/scatter_cuda.h"

namespace kvlab {

namespace {

struct Scatter {
  std::int32_t* to;
  const std::int64_t* place;
  const std::int32_t* value;
  std::int64_t total;
  __device__ std::int64_t count(int) const { return total; }
  __device__ void operator()(int, std::int64_t i) const { to[place[i]] = value[i]; }
};

}  // namespace

void run_cuda(const DeviceScatter& a, CudaContext& cuda) {
  if (a.count == 0) return;
  const CudaContext::Frame frame(cuda);
  const auto [place, value] = upload_all(cuda, host_array(a.place, a.count), host_array(a.value, a.count));
  launch_over_rows("scatter", cuda, 1, a.count, Scatter{a.to, place, value, a.count});
}

}  // namespace kvlab
