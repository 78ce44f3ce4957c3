// The symbols of kernels/*/*.cu in a program built without CUDA: each throws.
#include "kernels/cuda/memory.h"
#include "kernels/embedding/embedding_cuda.h"
#include "kernels/rmsnorm/rmsnorm_cuda.h"
#include "kernels/rope/rope_cuda.h"
#include "kernels/silu_mul/silu_mul_cuda.h"

#define KVLAB_NO_CUDA(Op) \
  void run_cuda(const Op&, CudaContext&) { throw CudaError(why_no_gpu()); }

namespace kvlab {

KVLAB_NO_CUDA(DeviceEmbedding)
KVLAB_NO_CUDA(DeviceRmsNorm)
KVLAB_NO_CUDA(DeviceRope)
KVLAB_NO_CUDA(DeviceSiluMul)

}  // namespace kvlab
