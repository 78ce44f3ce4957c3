#include "kernels/device/cuda/over_rows.cuh"
#include "kernels/device/cuda/upload.h"
#include "policies/kv/selector/keep_queries/keep_queries.h"

namespace kvlab {

namespace {

struct Keep {
  const Queries* queries;
  float* const* to;
  std::int64_t width;
  __device__ std::int64_t count(int s) const { return queries[s].count > 0 ? width : 0; }
  __device__ void operator()(int s, std::int64_t i) const { to[s][i] = queries[s].data[(queries[s].count - 1) * width + i]; }
};

}  // namespace

void run_cuda(const KeepQueries& a, CudaContext& cuda) {
  if (a.num_sequences == 0) return;
  const CudaContext::Frame frame(cuda);
  const auto [queries, to] = upload_all(cuda, host_array(a.queries, a.num_sequences), host_array(a.to, a.num_sequences));
  launch_over_rows("keep_queries", cuda, a.num_sequences, a.width, Keep{queries, to, a.width});
}

}  // namespace kvlab
