#include "kernels/device/cuda/memory.h"

#include "kernels/attention/append_kv/append_kv.h"
#include "kernels/attention/attention_decode/attention_decode.h"
#include "kernels/attention/attention_prefill/attention_prefill.h"
#include "kernels/attention/merge_partials/merge_partials.h"
#include "kernels/attention/sparse_prefill/sparse_prefill.h"
#include "kernels/device/cuda/blas.h"
#include "kernels/device/cuda/events.h"
#include "kernels/model/layer/layer.h"
#include "kernels/model/sampling/sampling.h"
#include "kernels/ops.h"
#include "kernels/storage/compact/compact.h"
#include "kernels/storage/page_copy/page_copy.h"

namespace kvlab {

namespace {

[[noreturn]] void refuse() { throw CudaError(why_no_gpu()); }

}  // namespace

CudaBackend cuda_backend() { return CudaBackend::kNone; }
int num_gpus() { return 0; }
std::string why_no_gpu() {
  return "this program was built without CUDA; cmake --preset cuda && cmake --build build/cuda builds one with it";
}
GpuInfo gpu_info(int) { refuse(); }
void use_gpu(int) { refuse(); }

struct CudaTimer::State {};
void CudaTimer::Free::operator()(State* s) const noexcept { delete s; }
CudaTimer::CudaTimer() { refuse(); }
void CudaTimer::hold(double, CudaStream) { refuse(); }
void CudaTimer::start(CudaStream) { refuse(); }
void CudaTimer::stop(CudaStream) { refuse(); }
double CudaTimer::seconds() const { refuse(); }
double CudaTimer::clock_ghz() const { refuse(); }

struct CudaGraph::State {};
CudaGraph::CudaGraph(CudaContext&, const std::function<void()>&) { refuse(); }
void CudaGraph::launch(CudaContext&) const { refuse(); }

void multiply(const MatrixProduct&, CudaContext&) { refuse(); }

namespace cuda {

void* allocate(std::int64_t) { refuse(); }
void free(void*) noexcept {}
std::int64_t free_bytes() { refuse(); }
void* allocate_pinned(std::int64_t) { refuse(); }
void free_pinned(void*) noexcept {}
void to_device(void*, const void*, std::int64_t, CudaStream) { refuse(); }
void to_host(void*, const void*, std::int64_t, CudaStream) { refuse(); }
void copy_ranges(std::span<const CopyRange>, CudaStream) { refuse(); }
void fill(void*, int, std::int64_t, CudaStream) { refuse(); }
CudaStream make_stream() { refuse(); }
void destroy(CudaStream) noexcept {}
void synchronize(CudaStream) { refuse(); }
void synchronize_all() { refuse(); }
void begin_scratch(void*, std::int64_t) {}
void copy_on_device(void*, const void*, std::int64_t, CudaStream) { refuse(); }
void launch_nothing(CudaStream) { refuse(); }

}  // namespace cuda

// For models; KV policies' operations use KVLAB_WITHOUT_CUDA.
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
