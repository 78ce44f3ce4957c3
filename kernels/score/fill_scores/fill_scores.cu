#include "kernels/device/cuda/over_rows.cuh"
#include "kernels/device/cuda/upload.h"
#include "kernels/score/fill_scores/fill_scores.h"

namespace kvlab {

namespace {

struct Fill {
  const std::int64_t* first;
  const std::int32_t *begin, *end;
  float value, slope;
  float* scores;
  __device__ std::int64_t count(int row) const { return end[row] - begin[row]; }
  __device__ void operator()(int row, std::int64_t i) const {
    scores[first[row] + begin[row] + i] = __fadd_rn(value, __fmul_rn(slope, static_cast<float>(i)));  // rounded twice, as on the CPU
  }
};

}  // namespace

void run_cuda(const FillScores& a, CudaContext& cuda) {
  std::int64_t longest = 0;
  for (std::int32_t r = 0; r < a.num_rows; ++r) longest = a.end[r] - a.begin[r] > longest ? a.end[r] - a.begin[r] : longest;
  if (longest == 0) return;
  const CudaContext::Frame frame(cuda);
  const auto [first, begin, end] =
      upload_all(cuda, host_array(a.first, a.num_rows + 1), host_array(a.begin, a.num_rows), host_array(a.end, a.num_rows));
  launch_over_rows("fill_scores", cuda, a.num_rows, longest, Fill{first, begin, end, a.value, a.slope, a.scores});
}

}  // namespace kvlab
