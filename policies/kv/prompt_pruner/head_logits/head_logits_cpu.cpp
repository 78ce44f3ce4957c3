#include <algorithm>
#include <cmath>
#include <vector>

#include "base/parallel.h"
#include "kernels/dot_cpu.h"
#include "policies/kv/prompt_pruner/head_logits/head_logits.h"

namespace kvlab {

namespace {

// The mean query of the row's group, scaled so that sums over the rows of a sequence are means over its heads.
std::vector<float> mean_group_query(const HeadLogits& a, std::int32_t row) {
  const Queries& queries = a.queries[a.kv.sequence(row)];
  const std::int64_t d = a.kv.head_dim, group = a.kv.group;
  const float* q = queries.data + ((queries.count - 1LL) * a.kv.kv_heads + row % a.kv.kv_heads) * group * d;
  std::vector<float> mean(static_cast<std::size_t>(d), 0.0F);
  for (std::int64_t h = 0; h < group; ++h)
    for (std::int64_t c = 0; c < d; ++c) mean[static_cast<std::size_t>(c)] += q[h * d + c];
  const float scale = 1.0F / (std::sqrt(static_cast<float>(d)) * static_cast<float>(group * a.kv.kv_heads));
  for (float& x : mean) x *= scale;
  return mean;
}

}  // namespace

void run_cpu(const HeadLogits& a) {
  for_each_in_parallel(a.kv.num_sequences(), [&](std::int64_t at) {
    const auto s = static_cast<std::int32_t>(at);
    float* const out = a.out + a.first[s];
    const auto n = static_cast<std::int32_t>(a.first[s + 1] - a.first[s]);
    std::fill_n(out, n, 0.0F);
    for (std::int32_t row = s * a.kv.kv_heads; row < (s + 1) * a.kv.kv_heads; ++row) {
      const std::vector<float> q = mean_group_query(a, row);
      for (std::int32_t i = 0; i < n; ++i) out[i] += lane_dot(q.data(), a.kv.key(row, i), a.kv.head_dim);
    }
  });
}

}  // namespace kvlab
