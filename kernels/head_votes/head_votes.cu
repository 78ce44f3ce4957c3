#include "kernels/cuda/over_rows.cuh"
#include "kernels/cuda/upload.h"
#include "kernels/head_votes/head_votes.h"

namespace kvlab {

namespace {

struct Votes {
  const std::int64_t *in_first, *first;
  const float* in;
  float* out;
  std::int32_t kv_heads;
  __device__ std::int64_t count(int s) const { return first[s + 1] - first[s]; }
  __device__ void operator()(int s, std::int64_t i) const {
    float sum = 0.0F;
    for (int r = s * kv_heads; r < (s + 1) * kv_heads; ++r) sum += in[in_first[r] + i];
    out[first[s] + i] = sum;
  }
};

}  // namespace

void run_cuda(const HeadVotes& a, CudaContext& cuda) {
  if (a.num_sequences == 0 || a.first[a.num_sequences] == a.first[0]) return;
  const CudaContext::Frame frame(cuda);
  const auto [in_first, first] =
      upload_all(cuda, host_array(a.in_first, std::int64_t{a.num_sequences} * a.kv_heads + 1), host_array(a.first, a.num_sequences + 1));
  launch_over_rows("head_votes", cuda, a.num_sequences, longest_row(a.first, a.num_sequences),
                   Votes{in_first, first, a.in, a.out, a.kv_heads});
}

}  // namespace kvlab
