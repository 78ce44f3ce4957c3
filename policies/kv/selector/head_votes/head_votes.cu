#include <cmath>
#include <vector>

#include "kernels/device/cuda/over_rows.cuh"
#include "kernels/device/cuda/row_tools.cuh"
#include "kernels/device/cuda/upload.h"
#include "kernels/select/page_scores/soften_rows.h"
#include "policies/kv/selector/head_votes/head_votes.h"

namespace kvlab {

namespace {

struct Candidates {
  const std::int32_t* begin;  // [sequences]
  const std::int64_t* first;  // [sequences + 1]
  const float* const* query;  // [sequences] the newest one, [kv_heads * group, head_dim]
  float scale;
  float *z, *votes, *out;  // rows of a sequence in turn: [group, n]; [n]; their sum

  __device__ std::int64_t size(int s) const { return first[s + 1] - first[s]; }
};

// A warp per candidate of a row and all heads of its group; `blocks` of four candidates per row.
template <class T>
__global__ void __launch_bounds__(128) candidate_logits(DeviceRows kv, Candidates a, int blocks) {
  const int row = static_cast<int>(blockIdx.x) / blocks, s = row / kv.kv_heads, head = row % kv.kv_heads;
  const std::int64_t n = a.size(s), i = static_cast<std::int64_t>(static_cast<int>(blockIdx.x) % blocks) * 4 + warp_index();
  if (i >= n) return;
  const T* const key = static_cast<const T*>(kv.k) + kv.slot(row, a.begin[s] + static_cast<std::int32_t>(i)) * kv.head_dim;
  float* const z = a.z + kv.group * (kv.kv_heads * a.first[s] + head * n);
  for (int h = 0; h < kv.group; ++h) {
    const float* const q = a.query[s] + (std::int64_t{head} * kv.group + h) * kv.head_dim;
    float sum = 0;
    for (int c = lane_index(); c < kv.head_dim; c += kWarpSize) sum += q[c] * load_float(key + c);
    sum = warp_sum(sum);
    if (lane_index() == 0) z[h * n + i] = a.scale * sum;
  }
}

struct SumVotes {
  Candidates a;
  std::int32_t kv_heads;
  __device__ std::int64_t count(int s) const { return a.size(s); }
  __device__ void operator()(int s, std::int64_t i) const {
    float sum = 0.0F;
    for (int h = 0; h < kv_heads; ++h) sum += a.votes[kv_heads * a.first[s] + h * a.size(s) + i];
    a.out[a.first[s] + i] = sum;
  }
};

Candidates candidates_of(const HeadVotes& a, CudaContext& cuda) {
  const std::int32_t sequences = a.kv.num_sequences();
  const std::int64_t all = a.kv.kv_heads * a.first[sequences];
  std::vector<const float*> query;
  for (std::int32_t s = 0; s < sequences; ++s) {
    const Queries& q = a.queries[s];
    query.push_back(q.count == 0 ? nullptr : q.data + (q.count - 1LL) * a.kv.kv_heads * a.kv.group * a.kv.head_dim);
  }
  const auto [begin, first, newest] =
      upload_all(cuda, host_array(a.begin, sequences), host_array(a.first, sequences + 1), std::span<const float* const>(query));
  return {begin,
          first,
          newest,
          1.0F / std::sqrt(static_cast<float>(a.kv.head_dim)),
          cuda.scratch<float>(a.kv.group * all),
          cuda.scratch<float>(all),
          a.out};
}

}  // namespace

void run_cuda(const HeadVotes& a, CudaContext& cuda) {
  const std::int32_t sequences = a.kv.num_sequences(), heads = a.kv.kv_heads;
  if (sequences == 0 || a.first[sequences] == 0) return;
  const CudaContext::Frame frame(cuda);
  const DeviceRows kv = on_device(a.kv, cuda);
  const Candidates c = candidates_of(a, cuda);
  const std::int64_t longest = longest_row(a.first, sequences);
  const std::int64_t blocks = ceil_div(longest, 4);
  const LaunchShape shape{dim3(static_cast<unsigned>(kv.num_rows * blocks)), dim3(128)};
  for_type(a.kv.type,
           [&](auto zero) { launch("head_votes", cuda, shape, candidate_logits<decltype(zero)>, kv, c, static_cast<int>(blocks)); });
  std::vector<SoftmaxRow> rows;
  for (std::int32_t r = 0; r < kv.num_rows; ++r) {
    const std::int64_t n = a.first[r / heads + 1] - a.first[r / heads], at = heads * a.first[r / heads] + r % heads * n;
    rows.push_back({c.z + a.kv.group * at, c.votes + at, nullptr, nullptr, static_cast<std::int32_t>(n)});
  }
  soften_rows("head_votes", rows, a.kv.group, UnitScores::Heads::kSum, cuda);
  launch_over_rows("head_votes", cuda, sequences, longest, SumVotes{c, heads});
}

}  // namespace kvlab
