#include <algorithm>

#include "kernels/device/cuda/over_rows.cuh"
#include "kernels/device/cuda/upload.h"
#include "kernels/select/mean_query/mean_query.h"

namespace kvlab {

namespace {

constexpr int kThreads = 256, kQueriesPerBlock = 128;

// partial [sequences, chunks, width]: sums over kQueriesPerBlock queries.
__global__ void __launch_bounds__(kThreads) add_queries(const Queries* queries, std::int64_t width, int chunks, float* partial) {
  const std::int64_t line = blockIdx.x, i = std::int64_t{blockIdx.y} * kThreads + threadIdx.x;
  if (i >= width) return;
  const Queries q = queries[line / chunks];
  const int first = static_cast<int>(line % chunks) * kQueriesPerBlock, last = min(q.count, first + kQueriesPerBlock);
  float sum = 0;
#pragma unroll 8
  for (int t = first; t < last; ++t) sum += q.data[t * width + i];
  partial[line * width + i] = sum;
}

struct Mean {
  const Queries* queries;
  const float* partial;
  std::int64_t width;
  int chunks;
  float* mean;
  __device__ std::int64_t count(int) const { return width; }
  __device__ void operator()(int s, std::int64_t i) const {
    float sum = 0;
    for (int c = 0; c < chunks; ++c) sum += partial[(std::int64_t{s} * chunks + c) * width + i];
    mean[s * width + i] = queries[s].count > 0 ? sum / static_cast<float>(queries[s].count) : 0.0F;
  }
};

// One block per sequence.
__global__ void __launch_bounds__(kThreads) sentence_query(const Queries* queries, const std::int32_t* const* sentence_of,
                                                           const std::int32_t* fresh, float* const* sums, std::int64_t width, float* mean) {
  const int s = blockIdx.x;
  const Queries q = queries[s];
  const std::int32_t at = q.first_position + q.count - 1;
  const bool begins = fresh[s] == 1 || at == 0 || sentence_of[s][at] != sentence_of[s][at - 1];
  float* const sum = sums[s];
  const float count = (begins ? 0.0F : sum[width]) + 1.0F;
  __syncthreads();  // all have read it
  if (threadIdx.x == 0) sum[width] = count;
  for (std::int64_t i = threadIdx.x; i < width; i += kThreads) {
    const float x = (begins ? 0.0F : sum[i]) + q.data[(q.count - 1) * width + i];
    sum[i] = x;
    mean[s * width + i] = x / count;
  }
}

}  // namespace

void run_cuda(const MeanQuery& a, CudaContext& cuda) {
  if (a.num_sequences == 0 || a.width == 0) return;
  const CudaContext::Frame frame(cuda);
  std::int32_t most = 1;
  for (std::int32_t s = 0; s < a.num_sequences; ++s) most = std::max(most, a.queries[s].count);
  const auto chunks = static_cast<int>(ceil_div(most, kQueriesPerBlock));
  const std::int64_t lines = std::int64_t{a.num_sequences} * chunks;
  const Queries* const queries = cuda.upload(a.queries, a.num_sequences);
  float* const partial = cuda.scratch<float>(lines * a.width);
  launch("mean_query", cuda, {dim3(static_cast<unsigned>(lines), static_cast<unsigned>(ceil_div(a.width, kThreads))), dim3(kThreads)},
         add_queries, queries, std::int64_t{a.width}, chunks, partial);
  launch_over_rows("mean_query", cuda, a.num_sequences, a.width, Mean{queries, partial, a.width, chunks, a.mean});
}

void run_cuda(const SentenceQuery& a, CudaContext& cuda) {
  if (a.num_sequences == 0) return;
  const CudaContext::Frame frame(cuda);
  const auto [queries, sentence_of, fresh, sums] =
      upload_all(cuda, host_array(a.queries, a.num_sequences), host_array(a.sentence_of, a.num_sequences),
                 host_array(a.fresh, a.num_sequences), host_array(a.sums, a.num_sequences));
  launch("sentence_query", cuda, {dim3(static_cast<unsigned>(a.num_sequences)), dim3(kThreads)}, sentence_query, queries, sentence_of,
         fresh, sums, std::int64_t{a.width}, a.mean);
}

}  // namespace kvlab
