#include "kernels/device/cuda/over_rows.cuh"
#include "kernels/device/cuda/upload.h"
#include "kernels/score/score_map/score_map.h"

namespace kvlab {

namespace {

struct Map {
  ScoreMap m;  // arrays of shapes in device memory
  __device__ std::int64_t count(int row) const { return m.first[row + 1] - m.first[row]; }
  __device__ void operator()(int row, std::int64_t at) const {
    const std::int64_t i = m.first[row] + at;
    const float x = m.a[i], a = __fadd_rn(__fmul_rn(m.a_factor, x), m.a_plus);  // rounded twice, as on the CPU
    float y = a;
    if (fabsf(x) == INFINITY) {
      y = x;
    } else if (m.uses_b) {
      const float b = __fmul_rn(m.row_factor == nullptr ? 1.0F : m.row_factor[row], m.b[i]);
      y = m.kind == ScoreMap::Kind::kPlus    ? __fadd_rn(a, b)
          : m.kind == ScoreMap::Kind::kTimes ? __fmul_rn(a, b)
                                             : a / (b < 1e-12F ? 1e-12F : b);
    }
    m.out[i] = y;
  }
};

}  // namespace

void run_cuda(const ScoreMap& a, CudaContext& cuda) {
  if (a.num_rows == 0 || a.first[a.num_rows] == a.first[0]) return;
  const CudaContext::Frame frame(cuda);
  Map map{a};
  const auto [first, factor] = upload_all(cuda, host_array(a.first, a.num_rows + 1), host_array(a.row_factor, a.num_rows));
  map.m.first = first, map.m.row_factor = factor;
  launch_over_rows("score_map", cuda, a.num_rows, longest_row(a.first, a.num_rows), map);
}

}  // namespace kvlab
