#include "kernels/device/cuda/block_choose.cuh"
#include "kernels/device/cuda/row_tools.cuh"
#include "kernels/device/cuda/upload.h"
#include "policies/kv/scorer/span_quota/span_quota.h"

namespace kvlab {

namespace {

struct Spans {
  DeviceRows kv;
  const std::int64_t *first, *quota_first;
  const std::int32_t *begin, *quota;
  float value;
  float* scores;
  int most_spans;
};

// One block per row and span.
__global__ void __launch_bounds__(kRowThreads) mark_quota(Spans a) {
  KVLAB_SHARED(std::int32_t, counts, 33);
  KVLAB_SHARED(std::uint64_t, sums, 33);
  const int row = blockIdx.x / a.most_spans, span = blockIdx.x % a.most_spans;
  const std::int64_t span0 = a.first[row / a.kv.kv_heads], spans = a.first[row / a.kv.kv_heads + 1] - span0;
  if (span >= spans) return;
  // A span holds the tokens that no span before it took, so the first one begins with the row.
  const std::int32_t at = span == 0 ? 0 : tokens_below(a.kv, row, a.begin[span0 + span]);
  const std::int32_t end = span + 1 < spans ? tokens_below(a.kv, row, a.begin[span0 + span + 1]) : a.kv.len[row], n = end - at;
  float* const scores = a.scores + a.kv.first[row] + at;
  const auto key = [&](std::int32_t i) { return ordered_key(scores[i]); };
  const BlockCut cut = block_cut(n, min(a.quota[a.quota_first[row] + span], n), key, counts);
  block_choose(n, cut, key, sums, [&](std::int32_t i, bool chosen, std::int32_t) {
    if (chosen) scores[i] = scores[i] < a.value ? a.value : scores[i];
  });
}

}  // namespace

void run_cuda(const SpanQuota& a, CudaContext& cuda) {
  if (a.kv.total() == 0) return;
  const CudaContext::Frame frame(cuda);
  const std::int32_t sequences = a.kv.num_sequences(), rows = a.kv.num_rows;
  std::int64_t most = 0;
  for (std::int32_t s = 0; s < sequences; ++s) most = std::max(most, a.first[s + 1] - a.first[s]);
  Spans on_gpu{};
  on_gpu.kv = on_device(a.kv, cuda);
  std::tie(on_gpu.first, on_gpu.quota_first, on_gpu.begin, on_gpu.quota) =
      upload_all(cuda, host_array(a.first, sequences + 1), host_array(a.quota_first, rows + 1), host_array(a.begin, a.first[sequences]),
                 host_array(a.quota, a.quota_first[rows]));
  on_gpu.value = a.value, on_gpu.scores = a.scores, on_gpu.most_spans = static_cast<int>(most);
  launch("span_quota", cuda, block_each(rows * most), mark_quota, on_gpu);
}

}  // namespace kvlab
