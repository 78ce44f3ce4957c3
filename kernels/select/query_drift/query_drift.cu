#include "kernels/device/cuda/download.h"
#include "kernels/device/cuda/row_tools.cuh"
#include "kernels/select/query_drift/query_drift.h"

namespace kvlab {

namespace {

struct Drift {
  const float* query;
  float* reference;
  std::int32_t rule;
};

// One block per sequence.
__global__ void __launch_bounds__(kRowThreads)
    query_drift(const Drift* drifts, std::int32_t width, float min_cosine, std::int32_t* refresh) {
  KVLAB_SHARED(float, shared, 33);
  const Drift a = drifts[blockIdx.x];
  bool refreshed = a.rule == QueryDrift::kAlways;
  if (a.rule == QueryDrift::kIfTurned) {
    float qq = 0, rr = 0, qr = 0;
    for (int i = threadIdx.x; i < width; i += kRowThreads) {
      const float q = a.query[i], r = a.reference[i];
      qq += q * q, rr += r * r, qr += q * r;
    }
    const float length = sqrtf(block_sum(qq, shared) * block_sum(rr, shared));
    qr = block_sum(qr, shared);
    refreshed = (length > 0.0F ? qr / length : 1.0F) < min_cosine;
  }
  if (threadIdx.x == 0) refresh[blockIdx.x] = refreshed ? 1 : 0;
  if (!refreshed) return;
  for (int i = threadIdx.x; i < width; i += kRowThreads) a.reference[i] = a.query[i];
}

}  // namespace

void run_cuda(const QueryDrift& a, CudaContext& cuda) {
  if (a.num_sequences == 0) return;
  const CudaContext::Frame frame(cuda);
  std::vector<Drift> drifts;
  for (std::int32_t s = 0; s < a.num_sequences; ++s) {
    const bool reads = a.rule[s] != QueryDrift::kNever;
    const Queries& q = a.queries[s];
    drifts.push_back({reads ? q.data + static_cast<std::int64_t>(q.count - 1) * a.width : nullptr, a.reference[s], a.rule[s]});
  }
  std::int32_t* const refresh = cuda.scratch<std::int32_t>(a.num_sequences);
  launch("query_drift", cuda, block_each(a.num_sequences), query_drift, cuda.upload(drifts.data(), a.num_sequences), a.width, a.min_cosine,
         refresh);
  const std::vector<std::int32_t> host = download(cuda, refresh, a.num_sequences);
  std::copy(host.begin(), host.end(), a.refresh);
}

}  // namespace kvlab
