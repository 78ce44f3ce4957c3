#include "kernels/device/cuda/over_rows.cuh"
#include "kernels/device/cuda/upload.h"
#include "kernels/select/block_max/block_max.h"

namespace kvlab {

namespace {

struct Largest {
  std::int32_t stride, before, span;
  const std::int64_t *in_first, *first;
  const float* in;
  float* out;
  __device__ std::int64_t count(int row) const { return first[row + 1] - first[row]; }
  __device__ void operator()(int row, std::int64_t b) const {
    const std::int64_t from = b * stride - before, n = in_first[row + 1] - in_first[row];
    float top = -INFINITY;
    for (std::int64_t j = max(from, std::int64_t{0}); j < min(n, from + span); ++j) {
      const float x = in[in_first[row] + j];
      top = top < x ? x : top;
    }
    out[first[row] + b] = top;
  }
};

}  // namespace

void run_cuda(const BlockMax& a, CudaContext& cuda) {
  if (a.num_rows == 0 || a.first[a.num_rows] == 0) return;
  const CudaContext::Frame frame(cuda);
  const auto [in_first, first] = upload_all(cuda, host_array(a.in_first, a.num_rows + 1), host_array(a.first, a.num_rows + 1));
  launch_over_rows("block_max", cuda, a.num_rows, longest_row(a.first, a.num_rows),
                   Largest{a.stride, a.before, a.span, in_first, first, a.in, a.out});
}

}  // namespace kvlab
