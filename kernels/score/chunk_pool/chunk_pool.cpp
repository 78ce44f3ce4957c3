#include "kernels/score/chunk_pool/chunk_pool.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <vector>

namespace kvlab {

namespace {

// Fewer than 512 terms in torch's order on contiguous data with AVX2: four sums of vectors of 8, then the rest, then the lanes.
float sum_as_torch(const float* x, std::int32_t count) {
  constexpr std::int32_t kLanes = 8, kSums = 4;
  float lanes[kSums][kLanes] = {};
  const std::int32_t vectors = count / kLanes, even = vectors / kSums * kSums;
  for (std::int32_t v = 0; v < vectors; ++v)
    for (std::int32_t i = 0; i < kLanes; ++i) lanes[v < even ? v % kSums : 0][i] += x[v * kLanes + i];
  for (std::int32_t s = 1; s < kSums; ++s)
    for (std::int32_t i = 0; i < kLanes; ++i) lanes[0][i] += lanes[s][i];
  float sum = 0;
  for (std::int32_t i = vectors * kLanes; i < count; ++i) sum += x[i];
  for (std::int32_t i = 0; i < kLanes && vectors > 0; ++i) sum += lanes[0][i];
  return sum;
}

float best_unit(const float* chunk, std::int32_t count, std::int32_t unit_tokens) {
  float best = -std::numeric_limits<float>::infinity();
  for (const float* unit = chunk; unit < chunk + count; unit += unit_tokens)
    best = std::max(best, std::accumulate(unit, unit + unit_tokens, 0.0F) / static_cast<float>(unit_tokens));
  return best;
}

}  // namespace

OpCall call(const ChunkPool& a) {
  std::int64_t n = 0;
  for (std::int32_t r = 0; r < a.num_rows; ++r) n += a.len[r];
  if (a.kind == ChunkPool::Kind::kBestUnit)
    return {.op = "unit_scores", .rows = a.num_rows, .tokens = n, .outputs = n, .bytes = 8 * n, .flops = n + n / a.unit_tokens};
  return {.op = "chunk_pool", .rows = a.num_rows, .tokens = n, .outputs = n, .bytes = 8 * n, .flops = 2 * n};
}
KVLAB_WITHOUT_CUDA(ChunkPool)

void run_cpu(const ChunkPool& a) {
  std::vector<float> sorted;
  for (std::int32_t r = 0; r < a.num_rows; ++r) {
    float* scores = a.scores + a.first[r] + (a.begin == nullptr ? 0 : a.begin[r]);
    for (std::int32_t at = 0, count = 0; at < a.len[r]; at += count) {
      count = std::min(a.chunk_tokens, a.len[r] - at);
      float* chunk = scores + at;
      if (a.kind == ChunkPool::Kind::kMeanOfTopHalf) {
        sorted.assign(chunk, chunk + count);
        std::sort(sorted.begin(), sorted.end(), std::greater<>());
        const std::int32_t half = (count + 1) / 2;
        std::fill_n(chunk, count, std::accumulate(sorted.begin(), sorted.begin() + half, 0.0F) / static_cast<float>(half));
        continue;
      }
      if (a.kind == ChunkPool::Kind::kBestUnit) {
        std::fill_n(chunk, count, best_unit(chunk, count, a.unit_tokens));
        continue;
      }
      const float sum = a.peer_sums ? sum_as_torch(chunk, count) : std::accumulate(chunk, chunk + count, 0.0F);
      if (a.kind == ChunkPool::Kind::kMean) {
        std::fill_n(chunk, count, sum / static_cast<float>(count));
      } else if (sum != 0.0F) {
        std::for_each(chunk, chunk + count, [sum](float& x) { x /= sum; });
      }
    }
  }
}

}  // namespace kvlab
