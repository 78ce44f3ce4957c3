#pragma once

#include "kernels/device/cuda/row_tools.cuh"

namespace kvlab {

// A prompt's keys and values [*, kv_heads, head_dim].
struct PromptKv {
  const float *k, *v;
  std::int64_t kv_heads, head_dim;
};

// Online softmax of one query over n keys, the j-th at position at(j), by a block of kRowThreads threads: put(c, output) for each channel;
// returns the natural log of the denominator. At most kRowThreads channels.
template <class At, class Put>
__device__ float attend_row(const float* q, const PromptKv& kv, std::int64_t kv_head, std::int64_t n, float scale, const At& at,
                            const Put& put) {
  KVLAB_SHARED(float, weights, kRowThreads);
  KVLAB_SHARED(float, shared, 33);
  const int d = static_cast<int>(kv.head_dim), c = static_cast<int>(threadIdx.x);
  const auto line = [&](const float* x, std::int64_t j) { return x + (at(j) * kv.kv_heads + kv_head) * d; };
  float top = -INFINITY, total = 0, out = 0;
  for (std::int64_t begin = 0; begin < n; begin += kRowThreads) {
    const std::int64_t j = begin + threadIdx.x;
    float z = -INFINITY;
    if (j < n) {
      const float* const key = line(kv.k, j);
      z = 0;
      for (int i = 0; i < d; ++i) z += q[i] * key[i];
      z *= scale;
    }
    const float higher = fmaxf(top, block_max(z, shared)), shrunk = expf(top - higher);
    const float weight = j < n ? expf(z - higher) : 0.0F;
    weights[threadIdx.x] = weight;
    total = total * shrunk + block_sum(weight, shared);
    out *= shrunk;
    const std::int64_t tile = n - begin < kRowThreads ? n - begin : kRowThreads;
    for (std::int64_t i = 0; c < d && i < tile; ++i) out += weights[i] * line(kv.v, begin + i)[c];
    top = higher;
    __syncthreads();  // before the next tile's weights
  }
  if (c < d) put(c, out / total);
  return top + logf(total);
}

// Throws CudaError.
inline void check_row_channels(const char* op, std::int64_t head_dim) {
  if (head_dim > kRowThreads) throw CudaError(std::string(op) + ": head_dim " + std::to_string(head_dim) + " is above 256");
}

}  // namespace kvlab
