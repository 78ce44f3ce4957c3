#include <algorithm>
#include <cmath>

#include "kernels/cuda/over_rows.cuh"
#include "kernels/cuda/upload.h"
#include "kernels/page_scores/page_scores.h"
#include "kernels/page_scores/unit_scores.h"

namespace kvlab {

namespace {

constexpr int kThreads = 256;

// One row's logits of all its heads, [group, n], and where the softmax goes.
struct SoftmaxRow {
  float *z, *out;
  const std::int32_t *unit, *sizes;
  std::int32_t n;
};

// stats [rows, group]: the largest logit and the weighted sum of exponentials. A block per row and head; sums in one order.
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
  PageScores::Heads heads;
  __device__ std::int64_t count(int row) const { return rows[row].n; }
  __device__ void operator()(int row, std::int64_t i) const {
    const SoftmaxRow& r = rows[row];
    float reduced = 0;
    for (int h = 0; h < group; ++h) {
      const float2 s = stats[row * group + h];
      float p = expf(r.z[h * std::int64_t{r.n} + i] - s.x) / s.y;
      if (heads == PageScores::Heads::kEach) {
        r.out[h * std::int64_t{r.n} + i] = p;
        continue;
      }
      if (heads == PageScores::Heads::kMean) p /= static_cast<float>(group);
      reduced = h == 0 ? p : heads == PageScores::Heads::kMax ? fmaxf(reduced, p) : reduced + p;
    }
    if (heads != PageScores::Heads::kEach) r.out[i] = reduced;
  }
};

void soften(const PageScores& a, const std::vector<SoftmaxRow>& rows, CudaContext& cuda) {
  std::int64_t longest = 0;
  for (const SoftmaxRow& row : rows) longest = std::max<std::int64_t>(longest, row.n);
  const SoftmaxRow* const device = cuda.upload(rows.data(), a.num_rows);
  const std::int64_t lines = std::int64_t{a.num_rows} * a.group;
  float2* const stats = cuda.scratch<float2>(lines);
  launch("page_scores", cuda, {dim3(static_cast<unsigned>(lines)), dim3(kThreads)}, weigh_units, device, a.group, stats);
  launch_over_rows("page_scores", cuda, a.num_rows, longest, Soften{device, stats, a.group, a.heads});
}

}  // namespace

void run_cuda(const PageScores& a, CudaContext& cuda) {
  if (a.num_rows == 0 || a.first[a.num_rows] == 0) return;
  const CudaContext::Frame frame(cuda);
  UnitScores scores{a.group,
                    a.head_dim,
                    static_cast<UnitScores::Kind>(a.kind),
                    static_cast<UnitScores::Heads>(a.heads),
                    a.max_share,
                    1.0F / std::sqrt(static_cast<float>(a.head_dim))};
  float* const z = a.softmax ? cuda.scratch<float>(a.group * a.first[a.num_rows]) : nullptr;
  if (a.softmax) scores.heads = UnitScores::Heads::kEach;
  std::vector<UnitRow> rows;
  std::vector<SoftmaxRow> softmax;
  for (std::int32_t r = 0; r < a.num_rows; ++r) {
    const auto n = static_cast<std::int32_t>(a.first[r + 1] - a.first[r]);
    const Queries& q = a.queries[r / a.kv_heads];
    const std::int64_t at = (static_cast<std::int64_t>(q.count - 1) * a.kv_heads + r % a.kv_heads) * a.group * a.head_dim;
    const std::int32_t* const unit = a.lists_units ? a.unit + a.first[r] : nullptr;
    float* const out = a.scores + (a.heads == PageScores::Heads::kEach ? a.group : 1) * a.first[r];
    float* const logits = a.softmax ? z + a.group * a.first[r] : out;
    rows.push_back({n > 0 ? q.data + at : nullptr, a.summaries[r], unit, logits, n});
    if (a.softmax) softmax.push_back({logits, out, unit, a.weighs_sizes ? a.sizes[r] : nullptr, n});
  }
  score_units("page_scores", scores, rows, cuda);
  if (a.softmax) soften(a, softmax, cuda);
}

}  // namespace kvlab
