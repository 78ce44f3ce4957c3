#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "kernels/dot_cpu.h"
#include "policies/kv/scorer/diversify/diversify.h"

namespace kvlab {

namespace {

// Sources ascend.
struct Row {
  std::vector<std::int32_t> sources;
  std::vector<float> keys;
};

void fill(const Diversify& a, std::int32_t r, Row& row) {
  const std::int64_t d = a.kv.head_dim;
  const float* scores = a.scores + a.kv.first[r];
  row.sources.resize(static_cast<std::size_t>(a.kv.len[r]));
  std::iota(row.sources.begin(), row.sources.end(), 0);
  const auto cut = row.sources.begin() + a.sources[r];
  std::nth_element(row.sources.begin(), cut, row.sources.end(),
                   [scores](std::int32_t x, std::int32_t y) { return scores[x] != scores[y] ? scores[x] > scores[y] : x < y; });
  row.sources.erase(cut, row.sources.end());
  std::sort(row.sources.begin(), row.sources.end());
  row.keys.resize(static_cast<std::size_t>(a.kv.len[r] * d));
  for (std::int32_t i = 0; i < a.kv.len[r]; ++i) {
    const float* key = a.kv.key(r, i);
    const float scale = 1.0F / std::max(std::sqrt(lane_dot(key, key, d)), 1e-12F);
    std::transform(key, key + d, row.keys.begin() + i * d, [scale](float x) { return x * scale; });
  }
}

}  // namespace

void run_cpu(const Diversify& a) {
  const std::int64_t d = a.kv.head_dim;
  Row row;
  for (std::int32_t r = 0; r < a.kv.num_rows; ++r) {
    fill(a, r, row);
    for (std::int32_t i = 0; i < a.kv.len[r]; ++i) {
      float& score = a.scores[a.kv.first[r] + i];
      if (std::isinf(score)) continue;
      float stays = 1.0F;
      for (const std::int32_t source : row.sources) {
        if (source == i) continue;
        const float rest = std::clamp(1.0F - lane_dot(row.keys.data() + i * d, row.keys.data() + source * d, d), 0.0F, 1.0F);
        stays = a.product ? stays * rest : std::min(stays, rest);
      }
      score *= stays;
    }
  }
}

}  // namespace kvlab
