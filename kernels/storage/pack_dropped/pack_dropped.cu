#include "kernels/device/cuda/device_parts.h"
#include "kernels/device/cuda/over_rows.cuh"
#include "kernels/device/cuda/row_tools.cuh"
#include "kernels/storage/pack_dropped/pack_dropped.h"

namespace kvlab {

namespace {

template <class T>
struct Pack {
  DeviceParts rows;
  T* packed;
  std::int32_t* position;
  __device__ std::int64_t count(int row) const { return std::int64_t{rows.num_dropped(row)} * 2 * rows.kv.head_dim; }
  __device__ void operator()(int row, std::int64_t at) const {
    const std::int64_t d = rows.kv.head_dim, i = at / (2 * d), c = at % (2 * d);
    const std::int32_t token = rows.dropped[rows.dropped_first[row] + i];
    if (c == 0) position[rows.dropped_first[row] + i] = rows.kv.position[rows.kv.slot(row, token)];
    packed[rows.dropped_first[row] * 2 * d + at] = c < d ? key_at<T>(rows.kv, row, token)[c] : value_at<T>(rows.kv, row, token)[c - d];
  }
};

}  // namespace

void run_cuda(const PackDropped& a, CudaContext& cuda) {
  if (a.rows.total_dropped() == 0) return;
  const CudaContext::Frame frame(cuda);
  const DeviceParts rows = on_device(a.rows, cuda);
  for_type(a.rows.kv.type, [&](auto zero) {
    using T = decltype(zero);
    launch_over_rows("pack_dropped", cuda, rows.kv.num_rows, rows.most_dropped * 2 * rows.kv.head_dim,
                     Pack<T>{rows, reinterpret_cast<T*>(a.packed), a.position});
  });
}

}  // namespace kvlab
