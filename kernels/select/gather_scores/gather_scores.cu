#include "kernels/device/cuda/over_rows.cuh"
#include "kernels/device/cuda/upload.h"
#include "kernels/select/gather_scores/gather_scores.h"

namespace kvlab {

namespace {

struct Gather {
  const std::int64_t *first, *index_first;
  const float* scores;
  const std::int32_t* index;
  float* out;
  __device__ std::int64_t count(int row) const { return index_first[row + 1] - index_first[row]; }
  __device__ void operator()(int row, std::int64_t i) const {
    const std::int64_t at = index_first[row] + i;
    out[at] = scores[first[row] + index[at]];
  }
};

}  // namespace

void run_cuda(const GatherScores& a, CudaContext& cuda) {
  const std::int64_t kept = a.num_rows == 0 ? 0 : a.index_first[a.num_rows];
  if (kept == 0) return;
  const CudaContext::Frame frame(cuda);
  const auto [first, index_first] = upload_all(cuda, host_array(a.first, a.num_rows + 1), host_array(a.index_first, a.num_rows + 1));
  const bool overlaps = a.out < a.scores + a.first[a.num_rows] && a.scores < a.out + kept;  // blocks run in no order
  float* const out = overlaps ? cuda.scratch<float>(kept) : a.out;
  launch_over_rows("gather_scores", cuda, a.num_rows, longest_row(a.index_first, a.num_rows),
                   Gather{first, index_first, a.scores, a.index, out});
  if (overlaps) copy_elements<float>("gather_scores", cuda, out, a.out, kept);
}

}  // namespace kvlab
