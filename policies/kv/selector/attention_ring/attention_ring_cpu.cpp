#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "kernels/dot_cpu.h"
#include "policies/kv/selector/attention_ring/attention_ring.h"

namespace kvlab {

namespace {

void push_row(const PushAttention& a, std::int32_t row, std::vector<float>& p, std::vector<float>& z) {
  const Queries& queries = a.queries[a.kv.sequence(row)];
  const std::int64_t d = a.kv.head_dim, heads = static_cast<std::int64_t>(a.kv.kv_heads) * a.kv.group;
  const float scale = 1.0F / std::sqrt(static_cast<float>(a.kv.head_dim));
  const auto token = [&](std::int64_t i) { return a.lists_tokens ? a.index[a.index_first[row] + i] : static_cast<std::int32_t>(i); };
  for (std::int32_t t = std::max(0, queries.count - a.ring); t < queries.count; ++t) {
    std::int64_t visible = a.tokens(row);  // positions ascend
    while (visible > 0 && a.kv.position[a.kv.slot(row, token(visible - 1))] > queries.first_position + t) --visible;
    if (visible == 0) continue;
    p.assign(static_cast<std::size_t>(visible), 0.0F);
    z.resize(p.size());
    for (std::int32_t h = 0; h < a.kv.group; ++h) {
      const float* q = queries.data + (t * heads + static_cast<std::int64_t>(row % a.kv.kv_heads) * a.kv.group + h) * d;
      for (std::int64_t i = 0; i < visible; ++i) z[static_cast<std::size_t>(i)] = scale * lane_dot(q, a.kv.key(row, token(i)), d);
      const float top = *std::max_element(z.begin(), z.end());
      float sum = 0;
      for (float& x : z) sum += x = std::exp(x - top);
      for (std::size_t i = 0; i < z.size(); ++i) p[i] += z[i] / sum / static_cast<float>(a.kv.group);
    }
    for (std::int64_t i = 0; i < visible; ++i) {
      std::uint32_t& count = a.kv.word(a.first_word + a.ring, row, token(i));
      const auto at = static_cast<std::int32_t>(count++ % static_cast<std::uint32_t>(a.ring));
      a.kv.word(a.first_word + at, row, token(i)) = std::bit_cast<std::uint32_t>(p[static_cast<std::size_t>(i)]);
    }
  }
}

}  // namespace

void run_cpu(const PushAttention& a) {
  std::vector<float> p, z;
  for (std::int32_t r = 0; r < a.kv.num_rows; ++r) push_row(a, r, p, z);
}

}  // namespace kvlab
