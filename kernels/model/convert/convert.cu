#include "kernels/device/cuda/device.cuh"
#include "kernels/device/cuda/launch.cuh"
#include "kernels/model/convert/convert_cuda.h"

namespace kvlab {

namespace {

constexpr int kThreads = 256;

// A thread has `Each` neighbouring elements.
template <class In, class Out, int Each>
__global__ void __launch_bounds__(kThreads)
    convert_rows(const In* in, Out* out, std::int64_t rows, std::int64_t width, std::int64_t in_stride, std::int64_t out_stride) {
  const std::int64_t at = (static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x) * Each;
  const std::int64_t row = at / width, column = at % width;
  if (row >= rows) return;
  const In* const from = in + row * in_stride + column;
  Out* const to = out + row * out_stride + column;
  float x[Each];
  load_numbers(from, x);
  store_numbers(to, x);
}

}  // namespace

void run_cuda(const DeviceConvert& given, CudaContext& cuda) {
  DeviceConvert a = given;
  if (a.rows == 0 || a.width == 0) return;
  if (a.in_stride == 0) a.in_stride = a.width;
  if (a.out_stride == 0) a.out_stride = a.width;
  const bool wide = a.width % 8 == 0 && a.in_stride % 8 == 0 && a.out_stride % 8 == 0 && aligned16({a.in, a.out});
  const LaunchShape blocks = blocks_of(ceil_div(ceil_div(a.rows * a.width, wide ? 8 : 1), kThreads), kThreads);
  for_type(a.in_type, [&](auto in) {
    for_type(a.out_type, [&](auto out) {
      using In = decltype(in);
      using Out = decltype(out);
      launch("convert_rows", cuda, blocks, wide ? convert_rows<In, Out, 8> : convert_rows<In, Out, 1>, static_cast<const In*>(a.in),
             static_cast<Out*>(a.out), a.rows, a.width, a.in_stride, a.out_stride);
    });
  });
}

}  // namespace kvlab
