#include "kernels/device/cuda/blas.h"
#include "kernels/model/linear/linear_cuda.h"

namespace kvlab {

void run_cuda(const DeviceLinear& a, CudaContext& cuda) {
  MatrixProduct p{a.x, a.w, a.y, a.bias, a.tokens, a.out_dim, a.in_dim};
  p.type = a.type, p.c_is_f32 = a.y_is_f32;
  multiply(p, cuda);
}

void run_cuda(const DeviceProject& a, CudaContext& cuda) {
  MatrixProduct p{a.x, a.r, a.y, nullptr, a.tokens, a.rank, a.dim};
  p.b_transposed = false;
  p.batch = a.rows, p.a_step = a.x_step, p.b_step = a.r_step, p.c_step = a.y_step;
  p.type = a.type;
  multiply(p, cuda);
}

}  // namespace kvlab
