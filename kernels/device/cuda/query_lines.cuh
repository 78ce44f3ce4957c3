#pragma once

#include "kernels/device/cuda/row_tools.cuh"

namespace kvlab {

// top = largest logit(i) of i < n, sum of exp(logit(i) - top); -infinity and 0 if n is 0. Whole warps call logit. `shared` [33]: scratch;
// all threads call it.
struct Softmax {
  float top, sum;
};
template <class Logit>
__device__ __forceinline__ Softmax block_softmax(std::int64_t n, float* shared, Logit&& logit) {
  float top = -INFINITY, sum = 0;
  for (std::int64_t i = warp_index(); i < n; i += blockDim.x / kWarpSize) {
    const float z = logit(i), higher = fmaxf(top, z);
    if (higher == -INFINITY) continue;
    sum = sum * expf(top - higher) + expf(z - higher);
    top = higher;
  }
  const float most = block_max(top, shared);
  const float mine = lane_index() == 0 && sum > 0 ? sum * expf(top - most) : 0.0F;
  return {most, block_sum(mine, shared)};
}

}  // namespace kvlab
