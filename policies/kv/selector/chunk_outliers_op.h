#pragma once

#include <cmath>

#include "kernels/rows/elements.h"
#include "kernels/rows/row_op.h"
#include "kernels/rows/team_tools.h"

namespace kvlab {

// Parts a row's chunks by how well their mean key represents them: a chunk's fit is the smallest cosine of its keys and the mean. The
// outliers[r] chunks of lowest fit (ties: the lower one) are outliers. Both lists ascend. ShadowKV, Sun et al. 2024, algorithm 1.
struct ChunkOutliers {
  KvRows kv;
  std::int32_t chunk_tokens = 0;
  const std::int32_t* chosen = nullptr;    // [kv.num_rows] 0: the row is unchanged
  const std::int32_t* chunks = nullptr;    // [kv.num_rows] whole chunks from token 0 on
  const std::int32_t* outliers = nullptr;  // [kv.num_rows] at most `chunks`
  const float* const* means = nullptr;     // [kv.num_rows] -> [chunks, head_dim]
  std::int32_t* const* outlier = nullptr;  // [kv.num_rows] -> [outliers] out
  std::int32_t* const* other = nullptr;    // [kv.num_rows] -> [chunks - outliers] out

  // Keys and means are read, the lists written; 4 FLOPs per channel and token.
  [[nodiscard]] OpCall cost() const {
    OpCall c{.op = "chunk_outliers", .rows = kv.num_rows};
    for (std::int32_t r = 0; r < kv.num_rows; ++r) {
      if (chosen[r] == 0) continue;
      const std::int64_t n = chunks[r], tokens = n * chunk_tokens;
      c.tokens += tokens;
      c.outputs += n;
      c.bytes += (tokens + n) * kv.head_dim * kv.kv_bytes + 4 * n;
      c.flops += 4 * tokens * kv.head_dim;
    }
    return c;
  }
  [[nodiscard]] std::int64_t rows() const { return kv.num_rows; }
  // A fit and a mark of each chunk.
  [[nodiscard]] std::int64_t room(std::int64_t row) const { return chosen[row] == 0 ? 0 : 2LL * chunks[row]; }
  void shapes(auto&& visit) {
    const std::int32_t n = kv.num_rows;
    visit(chosen, n), visit(chunks, n), visit(outliers, n), visit(means, n), visit(outlier, n), visit(other, n), visit(kv);
  }

  template <class Team>
  KVLAB_BODY void operator()(const Team& team, std::int64_t row) const {
    if (chosen[row] == 0) return;
    const std::int32_t n = chunks[row];
    float* const fit = team.room();
    auto* const marked = reinterpret_cast<std::int32_t*>(fit + n);
    team.each(n, [&](std::int64_t c) { fit[c] = worst_cosine(team, row, c); });
    mark_best(
        team, n, outliers[row], [&](std::int32_t c) { return -fit[c]; }, marked);
    const auto put_into = [](std::int32_t* list) {
      return [list](std::int64_t k, std::int64_t c) { list[k] = static_cast<std::int32_t>(c); };
    };
    team.pack(
        n, [&](std::int64_t c) { return marked[c] == 1; }, put_into(outlier[row]));
    team.pack(
        n, [&](std::int64_t c) { return marked[c] == 0; }, put_into(other[row]));
  }

 private:
  template <class Team>
  [[nodiscard]] KVLAB_BODY float worst_cosine(const Team& team, std::int64_t row, std::int64_t chunk) const {
    const std::int64_t d = kv.head_dim;
    const float* const mean = means[row] + chunk * d;
    const float size = std::sqrt(team.dot(mean, mean, d));
    float worst = 1.0F;
    for (std::int64_t i = chunk * chunk_tokens; i < (chunk + 1) * chunk_tokens; ++i) {
      const auto key = key_of(team, kv, row, i);
      const float sizes = std::sqrt(team.dot(key, key, d)) * size, cosine = team.dot(key, mean, d) / (sizes < 1e-20F ? 1e-20F : sizes);
      worst = cosine < worst ? cosine : worst;
    }
    return worst;
  }
};
KVLAB_ROW_OP(ChunkOutliers)

}  // namespace kvlab
