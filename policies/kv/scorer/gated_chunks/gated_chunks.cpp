#include "policies/kv/scorer/gated_chunks/gated_chunks.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <vector>

#include "kernels/select/top_k/take_best.h"

namespace kvlab {

namespace {

constexpr float kEpsilon = 1e-8F;  // added to shares, as in kvpress

struct Chunk {
  std::int32_t begin = 0, count = 0;
  float mean = 0, entropy = 0;
};

// In [0, 1]; scores are shifted up if one is negative.
float entropy(std::span<const float> scores) {
  if (scores.size() == 1) return 0;
  const float shift = std::min(0.0F, *std::min_element(scores.begin(), scores.end()));
  float sum = 0, h = 0;
  for (const float x : scores) sum += x - shift;
  for (const float x : scores) {
    const float p = (x - shift) / (sum + kEpsilon);
    h -= p * std::log(p + kEpsilon);
  }
  return std::clamp(h / std::log(static_cast<float>(scores.size())), 0.0F, 1.0F);
}

std::vector<Chunk> chunks_of(std::span<const float> scores, std::int32_t chunk_tokens) {
  std::vector<Chunk> chunks;
  const auto n = static_cast<std::int32_t>(scores.size());
  for (std::int32_t at = 0; at < n; at += chunk_tokens) {
    const std::int32_t count = std::min(chunk_tokens, n - at);
    const std::span<const float> of_chunk = scores.subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(count));
    chunks.push_back({at, count, std::accumulate(of_chunk.begin(), of_chunk.end(), 0.0F) / static_cast<float>(count), entropy(of_chunk)});
  }
  return chunks;
}

// The lower one of two in the middle.
float median(const std::vector<Chunk>& chunks, float Chunk::*value) {
  std::vector<float> values;
  for (const Chunk& c : chunks) values.push_back(c.*value);
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

void keep_best(std::vector<Candidate>& tokens, std::int32_t count, std::vector<char>& stays) {
  take_best(tokens, count, true);
  for (std::int32_t i = 0; i < count; ++i) stays[static_cast<std::size_t>(tokens[static_cast<std::size_t>(i)].at)] = 1;
}

std::vector<char> choose(const GatedChunks& a, std::span<const float> scores, std::int32_t budget) {
  std::vector<Chunk> chunks = chunks_of(scores, a.chunk_tokens);
  const float middle = median(chunks, &Chunk::mean), middle_entropy = median(chunks, &Chunk::entropy);
  std::stable_sort(chunks.begin(), chunks.end(), [](const Chunk& x, const Chunk& y) { return x.mean > y.mean; });
  std::vector<char> stays(scores.size(), 0);
  std::vector<Candidate> tokens;
  for (const Chunk& c : chunks) {
    std::int32_t count = std::min(c.count, budget);
    if (c.mean >= middle && c.entropy < middle_entropy) count = std::min(count, a.peaked_tokens);
    tokens.clear();
    for (std::int32_t i = c.begin; i < c.begin + c.count; ++i) tokens.push_back({scores[static_cast<std::size_t>(i)], i});
    keep_best(tokens, count, stays);
    budget -= count;
  }
  tokens.clear();
  for (std::size_t i = 0; i < scores.size(); ++i)
    if (stays[i] == 0) tokens.push_back({scores[i], static_cast<std::int64_t>(i)});
  keep_best(tokens, std::min(budget, static_cast<std::int32_t>(tokens.size())), stays);
  return stays;
}

}  // namespace

OpCall call(const GatedChunks& a) {
  const std::int64_t n = a.kv.total();
  return {.op = "gated_chunks", .rows = a.kv.num_rows, .tokens = n, .outputs = n, .bytes = 8 * n, .flops = 8 * n};
}

void run_cpu(const GatedChunks& a) {
  for (std::int32_t row0 = 0; row0 < a.kv.num_rows; row0 += a.kv.kv_heads) {
    if (a.kv.len[row0] == 0) continue;
    std::vector<float> sum(a.scores + a.kv.first[row0], a.scores + a.kv.first[row0] + a.kv.len[row0]);
    for (std::int32_t r = row0 + 1; r < row0 + a.kv.kv_heads; ++r)
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += a.scores[a.kv.first[r] + static_cast<std::int64_t>(i)];
    const std::vector<char> stays = choose(a, sum, a.budget[row0]);
    for (std::int32_t r = row0; r < row0 + a.kv.kv_heads; ++r)
      for (std::size_t i = 0; i < sum.size(); ++i)
        if (stays[i] == 0) a.scores[a.kv.first[r] + static_cast<std::int64_t>(i)] = -std::numeric_limits<float>::infinity();
  }
}

}  // namespace kvlab
