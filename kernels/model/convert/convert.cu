#include "kernels/device/cuda/launch.cuh"
#include "kernels/device/cuda/vectors.cuh"
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
  if constexpr (Each == 8) {
    float x[8];
    load8<In>(from, x);
    store8<Out>(to, x);
  } else {
    *to = from_float<Out>(to_float(*from));
  }
}

template <class In, class Out, int Each>
void run(const DeviceConvert& a, CudaContext& cuda) {
  const std::int64_t blocks = ceil_div(ceil_div(a.rows * a.width, Each), kThreads);
  launch("convert_rows", cuda, {dim3(static_cast<unsigned>(blocks)), dim3(kThreads)}, convert_rows<In, Out, Each>,
         static_cast<const In*>(a.in), static_cast<Out*>(a.out), a.rows, a.width, a.in_stride, a.out_stride);
}

}  // namespace

void run_cuda(const DeviceConvert& given, CudaContext& cuda) {
  DeviceConvert a = given;
  if (a.rows == 0 || a.width == 0) return;
  if (a.in_stride == 0) a.in_stride = a.width;
  if (a.out_stride == 0) a.out_stride = a.width;
  const bool wide = a.width % 8 == 0 && a.in_stride % 8 == 0 && a.out_stride % 8 == 0 && aligned16({a.in, a.out});
  for_type(a.in_type, [&](auto in) {
    for_type(a.out_type, [&](auto out) {
      using In = decltype(in);
      using Out = decltype(out);
      if (wide)
        run<In, Out, 8>(a, cuda);
      else
        run<In, Out, 1>(a, cuda);
    });
  });
}

}  // namespace kvlab
