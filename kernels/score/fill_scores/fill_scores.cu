#include "kernels/device/cuda/over_rows.cuh"
#include "kernels/device/cuda/upload.h"
#include "kernels/score/fill_scores/fill_scores.h"

namespace kvlab {

namespace {

struct Fill {
  const std::int64_t* first;
  const std::int32_t *begin, *end;
  float value, slope;
  bool outside;
  float* scores;
  __device__ std::int64_t count(int row) const {
    const std::int64_t inside = end[row] - begin[row];
    return outside ? first[row + 1] - first[row] - inside : inside;
  }
  __device__ void operator()(int row, std::int64_t i) const {
    const std::int64_t at = !outside ? begin[row] + i : i < begin[row] ? i : end[row] + i - begin[row];
    scores[first[row] + at] = __fadd_rn(value, __fmul_rn(slope, static_cast<float>(i)));  // rounded twice, as on the CPU
  }
};

}  // namespace

void run_cuda(const FillScores& a, CudaContext& cuda) {
  std::int64_t longest = 0;
  for (std::int32_t r = 0; r < a.num_rows; ++r) longest = a.count(r) > longest ? a.count(r) : longest;
  if (longest == 0) return;
  const CudaContext::Frame frame(cuda);
  const auto [first, begin, end] =
      upload_all(cuda, host_array(a.first, a.num_rows + 1), host_array(a.begin, a.num_rows), host_array(a.end, a.num_rows));
  launch_over_rows("fill_scores", cuda, a.num_rows, longest, Fill{first, begin, end, a.value, a.slope, a.outside, a.scores});
}

}  // namespace kvlab
