// The symbols of kernels/*/*.cu in a program built without CUDA: each throws.
#include "kernels/attention_prefill/attention_prefill_cuda.h"
#include "kernels/cuda/memory.h"
#include "kernels/embedding/embedding_cuda.h"
#include "kernels/merge_partials/merge_partials.h"
#include "kernels/rmsnorm/rmsnorm_cuda.h"
#include "kernels/rope/rope_cuda.h"
#include "kernels/sampling/sampling_cuda.h"
#include "kernels/silu_mul/silu_mul_cuda.h"

#define KVLAB_NO_CUDA(Op) \
  void run_cuda(const Op&, CudaContext&) { throw CudaError(why_no_gpu()); }

namespace kvlab {

KVLAB_NO_CUDA(DeviceEmbedding)
KVLAB_NO_CUDA(DeviceMergePartials)
KVLAB_NO_CUDA(DevicePrefill)
KVLAB_NO_CUDA(DeviceRmsNorm)
KVLAB_NO_CUDA(DeviceRope)
KVLAB_NO_CUDA(DeviceSampling)
KVLAB_NO_CUDA(DeviceSiluMul)

std::vector<PrefillVariant> prefill_variants(std::int32_t) { return {}; }

}  // namespace kvlab
