#pragma once

#include "kernels/device/cuda/device.cuh"

namespace kvlab {

// `lanes` lanes (a power of two) share a part of a token.
struct TileWalk {
  int token, part, token_step, part_step, per_token;
  __device__ __forceinline__ TileWalk(int lanes, int parts_per_token) : per_token(parts_per_token) {
    const int mine = lane_index() / lanes, step = kWarpSize / lanes;
    token = mine / per_token, part = mine % per_token, token_step = step / per_token, part_step = step % per_token;
  }
  __device__ __forceinline__ void next() {
    token += token_step, part += part_step;
    if (part >= per_token) part -= per_token, ++token;
  }
};

}  // namespace kvlab
