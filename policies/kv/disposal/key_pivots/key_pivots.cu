#include <cfloat>

#include "kernels/device/cuda/over_rows.cuh"
#include "policies/kv/disposal/key_pivots/key_pivots.h"
#include "policies/kv/disposal/key_runs/key_links.cuh"

namespace kvlab {

namespace {

// Each token walks its chain of links and compares scores; the old ones are read while new ones are written elsewhere.
struct Pivots {
  DeviceRows kv;
  const std::uint8_t* linked;
  const float* scores;
  float* out;
  __device__ std::int64_t count(int row) const { return kv.len[row]; }
  __device__ void operator()(int row, std::int64_t at) const {
    const float* const score = scores + kv.first[row];
    const std::uint8_t* const link = linked + kv.first[row];
    const auto joins = [&](std::int64_t i) { return link[i] != 0 && score[i] <= FLT_MAX && score[i - 1] <= FLT_MAX; };
    bool is_pivot = true;
    for (std::int64_t i = at; is_pivot && i > 0 && joins(i); --i) is_pivot = score[i - 1] < score[at];
    for (std::int64_t i = at + 1; is_pivot && i < kv.len[row] && joins(i); ++i) is_pivot = score[i] <= score[at];
    out[kv.first[row] + at] = is_pivot ? score[at] : -1.0F / fmaxf(score[at], FLT_MIN);
  }
};

}  // namespace

void run_cuda(const KeyPivots& a, CudaContext& cuda) {
  if (a.kv.total() == 0) return;
  const CudaContext::Frame frame(cuda);
  const DeviceRows rows = on_device(a.kv, cuda);
  const std::uint8_t* const linked = find_links("key_pivots", cuda, a.kv, rows, a.min_cosine);
  auto* const before = cuda.scratch<float>(rows.total);
  copy_elements<float>("key_pivots", cuda, a.scores, before, rows.total);
  launch_over_rows("key_pivots", cuda, rows.num_rows, rows.longest, Pivots{rows, linked, before, a.scores});
}

}  // namespace kvlab
