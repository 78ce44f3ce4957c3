#include <algorithm>

#include "kernels/device/cuda/over_rows.cuh"
#include "kernels/device/cuda/upload.h"
#include "kernels/score/pool1d/pool1d.h"

namespace kvlab {

namespace {

struct Smooth {
  const std::int64_t* first;
  const std::int32_t* len;
  const float* scores;
  float* out;
  std::int32_t width;
  Pool1d::Kind kind;

  __device__ std::int64_t count(int row) const { return len[row]; }
  __device__ void operator()(int row, std::int64_t i) const {
    const float* line = scores + first[row];
    const std::int64_t begin = max(std::int64_t{0}, i - width / 2), end = min(std::int64_t{len[row]}, i + width / 2 + 1);
    float x = kind == Pool1d::Kind::kMax ? line[begin] : 0.0F;
    for (std::int64_t j = begin; j < end; ++j) {
      const float y = line[j];
      x = kind == Pool1d::Kind::kAvg ? x + y : x < y ? y : x;
    }
    out[first[row] + i] = kind == Pool1d::Kind::kAvg ? x / static_cast<float>(width) : x;
  }
};

struct CopyBack : Smooth {
  float* to;
  __device__ void operator()(int row, std::int64_t i) const { to[first[row] + i] = out[first[row] + i]; }
};

}  // namespace

void run_cuda(const Pool1d& a, CudaContext& cuda) {
  if (a.num_rows == 0 || a.width <= 1) return;
  const CudaContext::Frame frame(cuda);
  const auto [first, len] = upload_all(cuda, host_array(a.first, a.num_rows + 1), host_array(a.len, a.num_rows));
  const std::int32_t longest = *std::max_element(a.len, a.len + a.num_rows);
  const Smooth smooth{first, len, a.scores, cuda.scratch<float>(a.first[a.num_rows]), a.width, a.kind};
  launch_over_rows("pool1d", cuda, a.num_rows, longest, smooth);
  launch_over_rows("pool1d", cuda, a.num_rows, longest, CopyBack{smooth, a.scores});
}

}  // namespace kvlab
