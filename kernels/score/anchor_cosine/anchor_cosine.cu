#include <algorithm>

#include "kernels/device/cuda/listed_sums.cuh"
#include "kernels/device/cuda/upload.h"
#include "kernels/score/anchor_cosine/anchor_cosine.h"

namespace kvlab {

namespace {

constexpr float kLeastNorm = 1e-8F;

struct UnitKeys {
  static constexpr bool kScales = true;
  const std::int32_t *begin, *end;
  __device__ std::int32_t count(int row) const { return end[row] - begin[row]; }
  __device__ std::int32_t token(int row, std::int32_t i) const { return begin[row] + i; }
  __device__ float scale(float squares) const { return 1.0F / fmaxf(sqrtf(squares), kLeastNorm); }
};

// anchor [rows, head_dim] and the factor of each row.
__global__ void __launch_bounds__(kTokenThreads) finish_anchor(const float* partial, const std::int32_t* begin, const std::int32_t* end,
                                                               int chunks, int d, bool cosine, float factor, float* anchor, float* scale) {
  KVLAB_SHARED(float, shared, 33);
  const int row = blockIdx.x;
  const double count = max(1, end[row] - begin[row]);
  float squares = 0;
  for (int c = threadIdx.x; c < d; c += kTokenThreads) {
    double sum = 0;
    for (int i = 0; i < chunks; ++i) sum += static_cast<double>(partial[(std::int64_t{row} * chunks + i) * d + c]);
    const auto x = static_cast<float>(sum / count);
    anchor[std::int64_t{row} * d + c] = x;
    squares += x * x;
  }
  squares = block_sum(squares, shared);
  if (threadIdx.x == 0) scale[row] = factor / (cosine ? fmaxf(sqrtf(squares), kLeastNorm) : 1.0F);
}

struct Cosine {
  static constexpr int kSums = 2, kVectors = 1;
  const std::int32_t* len;
  const std::int64_t* first;
  const float *anchor, *scale;
  std::int32_t head_dim;
  float* out;
  __device__ std::int32_t begin(int) const { return 0; }
  __device__ std::int32_t end(int row) const { return len[row]; }
  __device__ const float* vector(int row, int) const { return anchor + std::int64_t{row} * head_dim; }
  __device__ void add(float (&sum)[2], float x, const float (&y)[1]) const { sum[0] += x * y[0], sum[1] += x * x; }
  __device__ void finish(int row, std::int32_t token, const float (&sum)[2]) const {
    out[first[row] + token] = scale[row] * sum[0] / fmaxf(sqrtf(sum[1]), kLeastNorm);
  }
};

}  // namespace

void run_cuda(const AnchorCosine& a, CudaContext& cuda) {
  if (a.kv.total() == 0) return;
  const CudaContext::Frame frame(cuda);
  const DeviceRows kv = on_device(a.kv, cuda);
  const auto [begin, end] = upload_all(cuda, host_array(a.begin, kv.num_rows), host_array(a.end, kv.num_rows));
  std::int64_t longest = 1;
  for (std::int32_t r = 0; r < kv.num_rows; ++r) longest = std::max<std::int64_t>(longest, a.end[r] - a.begin[r]);
  const auto chunks = static_cast<int>(ceil_div(longest, kTokenChunk));
  float *const anchor = cuda.scratch<float>(std::int64_t{kv.num_rows} * kv.head_dim), *const scale = cuda.scratch<float>(kv.num_rows);
  const float* const partial = launch_listed_sums("anchor_cosine", cuda, kv, a.kv.type, false, chunks, UnitKeys{begin, end});
  launch("anchor_cosine", cuda, {dim3(static_cast<unsigned>(kv.num_rows)), dim3(kTokenThreads)}, finish_anchor, partial, begin, end, chunks,
         kv.head_dim, a.cosine, a.factor, anchor, scale);
  launch_token_sums("anchor_cosine", cuda, kv, a.kv.type, false, kv.longest, Cosine{kv.len, kv.first, anchor, scale, kv.head_dim, a.out});
}

}  // namespace kvlab
