#include "kernels/device/cuda/blas.h"

namespace kvlab {

void multiply(const MatrixProduct&, CudaContext&) { throw CudaError(why_no_gpu()); }

}  // namespace kvlab
