#include "kernels/device/cuda/device_rows.h"
#include "kernels/device/cuda/over_rows.cuh"
#include "kernels/score/reduce_heads/reduce_heads.h"

namespace kvlab {

namespace {

struct Reduce {
  DeviceRows kv;
  ReduceHeads::Kind kind;
  bool by_position;
  const float* scores;
  float* out;

  __device__ std::int64_t count(int row) const { return kv.len[row]; }
  __device__ std::int32_t position(int row, std::int32_t i) const { return by_position ? kv.position[kv.slot(row, i)] : i; }
  // The token of `row` at this position, -1: none. Positions ascend along a row; heads that lost the same tokens have it at the same place.
  __device__ std::int32_t token_at(int row, std::int32_t wanted, std::int32_t guess) const {
    std::int32_t begin = 0, end = kv.len[row];
    if (guess < end) {
      const std::int32_t there = position(row, guess);
      if (there == wanted) return guess;
      if (there < wanted)
        begin = guess + 1;
      else
        end = guess;
    }
    while (begin < end) {
      const std::int32_t middle = begin + (end - begin) / 2;
      if (position(row, middle) < wanted)
        begin = middle + 1;
      else
        end = middle;
    }
    return begin < kv.len[row] && position(row, begin) == wanted ? begin : -1;
  }
  __device__ void operator()(int row, std::int64_t i) const {
    const auto token = static_cast<std::int32_t>(i);
    const std::int32_t wanted = position(row, token);
    const int row0 = row / kv.kv_heads * kv.kv_heads;
    float sum = 0.0F;
    std::int32_t heads = 0;
    for (int r = row0; r < row0 + kv.kv_heads; ++r) {
      const std::int32_t at = r == row ? token : token_at(r, wanted, token);
      if (at < 0) continue;
      sum += scores[kv.first[r] + at];
      ++heads;
    }
    if (kind == ReduceHeads::Kind::kMean) sum /= static_cast<float>(heads);
    if (kind == ReduceHeads::Kind::kRootOfSum) sum = sqrtf(sum);
    out[kv.first[row] + i] = sum;
  }
};

}  // namespace

void run_cuda(const ReduceHeads& a, CudaContext& cuda) {
  if (a.kv.total() == 0) return;
  const CudaContext::Frame frame(cuda);
  const Reduce reduce{on_device(a.kv, cuda), a.kind, a.by_position, a.scores, cuda.scratch<float>(a.kv.total())};
  launch_over_rows("reduce_heads", cuda, a.kv.num_rows, reduce.kv.longest, reduce);
  copy_elements<float>("reduce_heads", cuda, reduce.out, a.scores, a.kv.total());
}

}  // namespace kvlab
