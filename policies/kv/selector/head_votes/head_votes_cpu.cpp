#include <algorithm>
#include <cmath>
#include <vector>

#include "base/parallel.h"
#include "kernels/dot_cpu.h"
#include "policies/kv/selector/head_votes/head_votes.h"

namespace kvlab {

namespace {

// Votes of the row's query heads.
std::vector<float> votes_of(const HeadVotes& a, std::int32_t row) {
  const std::int32_t s = a.kv.sequence(row), group = a.kv.group;
  const std::int64_t d = a.kv.head_dim;
  const auto n = static_cast<std::int32_t>(a.first[s + 1] - a.first[s]);
  std::vector<float> votes(static_cast<std::size_t>(n), 0.0F), z(static_cast<std::size_t>(n) * static_cast<std::size_t>(group));
  if (n == 0) return votes;
  const Queries& queries = a.queries[s];
  const float* q = queries.data + ((queries.count - 1LL) * a.kv.kv_heads + row % a.kv.kv_heads) * group * d;
  const float scale = 1.0F / std::sqrt(static_cast<float>(d));
  for (std::int32_t i = 0; i < n; ++i) {
    const float* key = a.kv.key(row, a.begin[s] + i);
    for (std::int64_t h = 0; h < group; ++h) z[static_cast<std::size_t>(h * n + i)] = scale * lane_dot(q + h * d, key, d);
  }
  for (std::int64_t h = 0; h < group; ++h) {
    float* const of_head = z.data() + h * n;
    const float top = *std::max_element(of_head, of_head + n);
    float sum = 0.0F;
    for (std::int32_t i = 0; i < n; ++i) sum += of_head[i] = std::exp(of_head[i] - top);
    for (std::int32_t i = 0; i < n; ++i) votes[static_cast<std::size_t>(i)] += of_head[i] / sum;
  }
  return votes;
}

}  // namespace

void run_cpu(const HeadVotes& a) {
  std::vector<std::vector<float>> of_row(static_cast<std::size_t>(a.kv.num_rows));
  for_each_in_parallel(a.kv.num_rows,
                       [&](std::int64_t r) { of_row[static_cast<std::size_t>(r)] = votes_of(a, static_cast<std::int32_t>(r)); });
  for (std::int32_t s = 0; s < a.kv.num_sequences(); ++s) {
    float* const out = a.out + a.first[s];
    std::fill_n(out, a.first[s + 1] - a.first[s], 0.0F);
    for (std::int32_t r = s * a.kv.kv_heads; r < (s + 1) * a.kv.kv_heads; ++r) {
      const std::vector<float>& votes = of_row[static_cast<std::size_t>(r)];
      for (std::size_t i = 0; i < votes.size(); ++i) out[i] += votes[i];
    }
  }
}

}  // namespace kvlab
