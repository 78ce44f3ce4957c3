// Operations of a model in a program built without CUDA: each throws. Those of KV policies have KVLAB_WITHOUT_CUDA beside call().
#include "kernels/attention/append_kv/append_kv_cuda.h"
#include "kernels/attention/append_kv/append_rows.h"
#include "kernels/attention/attention_decode/attention_decode_cuda.h"
#include "kernels/attention/attention_prefill/attention_prefill_cuda.h"
#include "kernels/attention/attention_prefill/prefill_scores_cuda.h"
#include "kernels/attention/merge_partials/merge_partials.h"
#include "kernels/device/cuda/memory.h"
#include "kernels/model/convert/convert_cuda.h"
#include "kernels/model/embedding/embedding_cuda.h"
#include "kernels/model/linear/linear_cuda.h"
#include "kernels/model/rmsnorm/rmsnorm_cuda.h"
#include "kernels/model/rope/rope_cuda.h"
#include "kernels/model/sampling/sampling_cuda.h"
#include "kernels/model/scatter/scatter_cuda.h"
#include "kernels/model/silu_mul/silu_mul_cuda.h"
#include "kernels/storage/compact/compact_cuda.h"
#include "kernels/storage/page_copy/page_copy.h"

#define KVLAB_NO_CUDA(Op) \
  void run_cuda(const Op&, CudaContext&) { throw CudaError(why_no_gpu()); }

namespace kvlab {

KVLAB_NO_CUDA(AppendRows)
KVLAB_NO_CUDA(DeviceConvert)
KVLAB_NO_CUDA(DeviceEmbedding)
KVLAB_NO_CUDA(DeviceGather)
KVLAB_NO_CUDA(DeviceLinear)
KVLAB_NO_CUDA(DeviceMergePartials)
KVLAB_NO_CUDA(DevicePrefill)
KVLAB_NO_CUDA(DevicePrefillScores)
KVLAB_NO_CUDA(DeviceProject)
KVLAB_NO_CUDA(DeviceRmsNorm)
KVLAB_NO_CUDA(DeviceRope)
KVLAB_NO_CUDA(DeviceSampling)
KVLAB_NO_CUDA(DeviceScatter)
KVLAB_NO_CUDA(DeviceSiluMul)
KVLAB_NO_CUDA(PageCopy)

std::int32_t splits_of(const DevicePrefill&, const GpuInfo&) { return 1; }
std::vector<PrefillVariant> prefill_variants(std::int32_t) { return {}; }

}  // namespace kvlab
