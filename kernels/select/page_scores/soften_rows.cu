#include <algorithm>

#include "kernels/device/cuda/row_tools.cuh"
#include "kernels/select/page_scores/unit_scores.h"

namespace kvlab {

namespace {

constexpr int kThreads = 256;

// stats [rows, group]: largest logit, weighted sum of exponentials. A block per row and head; fixed order of sums.
__global__ void __launch_bounds__(kThreads) weigh_units(const SoftmaxRow* rows, int group, float2* stats) {
  KVLAB_SHARED(float, shared, 33);
  const SoftmaxRow row = rows[blockIdx.x / group];
  if (row.n == 0) return;
  const float* const z = row.z + std::int64_t{blockIdx.x % group} * row.n;
  float top = -INFINITY, sum = 0;
  for (int i = threadIdx.x; i < row.n; i += kThreads) top = fmaxf(top, z[i]);
  top = block_reduce(top, -INFINITY, shared, [](float x, float y) { return fmaxf(x, y); });
  for (int i = threadIdx.x; i < row.n; i += kThreads) {
    const std::int32_t unit = row.unit != nullptr ? row.unit[i] : i;
    sum += (row.sizes != nullptr ? static_cast<float>(row.sizes[unit]) : 1.0F) * expf(z[i] - top);
  }
  sum = block_sum(sum, shared);
  if (threadIdx.x == 0) stats[blockIdx.x] = make_float2(top, sum);
}

struct Soften {
  const SoftmaxRow* rows;
  const float2* stats;
  std::int32_t group;
  UnitScores::Heads heads;
  __device__ std::int64_t count(int row) const { return rows[row].n; }
  __device__ void operator()(int row, std::int64_t i) const {
    const SoftmaxRow& r = rows[row];
    float reduced = 0;
    for (int h = 0; h < group; ++h) {
      const float2 s = stats[row * group + h];
      float p = s.x == -INFINITY ? 0.0F : expf(r.z[h * std::int64_t{r.n} + i] - s.x) / s.y;
      if (heads == UnitScores::Heads::kEach) {
        r.out[h * std::int64_t{r.n} + i] = p;
        continue;
      }
      if (heads == UnitScores::Heads::kMean) p /= static_cast<float>(group);
      reduced = h == 0 ? p : heads == UnitScores::Heads::kMax ? fmaxf(reduced, p) : reduced + p;
    }
    if (heads != UnitScores::Heads::kEach) r.out[i] = reduced;
  }
};

}  // namespace

void soften_rows(const char* name, const std::vector<SoftmaxRow>& rows, std::int32_t group, UnitScores::Heads heads, CudaContext& cuda) {
  std::int64_t longest = 0;
  for (const SoftmaxRow& row : rows) longest = std::max<std::int64_t>(longest, row.n);
  if (longest == 0) return;
  const auto n = static_cast<std::int64_t>(rows.size());
  const SoftmaxRow* const device = cuda.upload(rows.data(), n);
  float2* const stats = cuda.scratch<float2>(n * group);
  launch(name, cuda, {dim3(static_cast<unsigned>(n * group)), dim3(kThreads)}, weigh_units, device, group, stats);
  launch_over_rows(name, cuda, n, longest, Soften{device, stats, group, heads});
}

}  // namespace kvlab
