// For models; KV policies' operations use KVLAB_WITHOUT_CUDA.
#include "kernels/ops.h"

#include "kernels/attention/append_kv/append_kv.h"
#include "kernels/attention/attention_decode/attention_decode.h"
#include "kernels/attention/attention_prefill/attention_prefill.h"
#include "kernels/attention/merge_partials/merge_partials.h"
#include "kernels/attention/sparse_prefill/sparse_prefill.h"
#include "kernels/model/layer/layer.h"
#include "kernels/model/sampling/sampling.h"
#include "kernels/storage/compact/compact.h"
#include "kernels/storage/page_copy/page_copy.h"

namespace kvlab {

KVLAB_WITHOUT_CUDA(AppendKv)
KVLAB_WITHOUT_CUDA(AppendRows)
KVLAB_WITHOUT_CUDA(DeviceConvert)
KVLAB_WITHOUT_CUDA(Embedding)
KVLAB_WITHOUT_CUDA(DeviceGather)
KVLAB_WITHOUT_CUDA(Linear)
KVLAB_WITHOUT_CUDA(DeviceMergePartials)
KVLAB_WITHOUT_CUDA(DevicePrefill)
KVLAB_WITHOUT_CUDA(DevicePrefillScores)
KVLAB_WITHOUT_CUDA(DeviceProject)
KVLAB_WITHOUT_CUDA(RmsNorm)
KVLAB_WITHOUT_CUDA(Rope)
KVLAB_WITHOUT_CUDA(Sampling)
KVLAB_WITHOUT_CUDA(DeviceScatter)
KVLAB_WITHOUT_CUDA(DeviceSparsePrefill)
KVLAB_WITHOUT_CUDA(SiluMul)
KVLAB_WITHOUT_CUDA(PageCopy)

std::int32_t splits_of(const DevicePrefill&, const GpuInfo&) { return 1; }
std::vector<PrefillVariant> prefill_variants(std::int32_t) { return {}; }

}  // namespace kvlab
