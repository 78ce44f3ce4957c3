// The symbols of kernels/*/*.cu in a program built without CUDA: each throws.
#include "kernels/cuda/memory.h"
#include "kernels/rmsnorm/rmsnorm_cuda.h"

#define KVLAB_NO_CUDA(Op) \
  void run_cuda(const Op&, CudaContext&) { throw CudaError(why_no_gpu()); }

namespace kvlab {

KVLAB_NO_CUDA(DeviceRmsNorm)

}  // namespace kvlab
