#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/parallel.h"
#include "kernels/dot_cpu.h"
#include "kernels/select/flex_blocks/flex_blocks.h"
#include "kernels/select/window_sums_cpu.h"

namespace kvlab {

namespace {

// Mean queries and keys of one head's blocks.
struct FlexMeans {
  std::vector<float> q, k;
};

void soften(std::vector<float>& row) {
  Eigen::Map<Eigen::ArrayXf> x(row.data(), static_cast<std::int64_t>(row.size()));
  x = (x - x.maxCoeff()).exp();
  x /= x.sum();
}

// Softmax over the first `blocks` mean keys.
std::vector<float> pooled_row(const FlexBlocks& a, const FlexMeans& means, const float* query, std::int64_t blocks) {
  const std::int64_t d = a.prompt.head_dim;
  const float scale = 1.0F / std::sqrt(static_cast<float>(d));
  std::vector<float> row;
  for (std::int64_t j = 0; j < blocks; ++j) row.push_back(scale * lane_dot(query, means.k.data() + j * d, d));
  soften(row);
  return row;
}

std::vector<float> added_in_blocks(const std::vector<float>& x, std::int64_t block) {
  std::vector<float> sums(static_cast<std::size_t>(ceil_div(static_cast<std::int64_t>(x.size()), block)));
  for (std::size_t i = 0; i < x.size(); ++i) sums[i / static_cast<std::size_t>(block)] += x[i];
  return sums;
}

double divergence_root(const std::vector<float>& a, const std::vector<float>& b) {
  constexpr double kTiny = 1e-12;
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double x = a[i] + kTiny, y = b[i] + kTiny, mean = (x + y) / 2;
    sum += (x * std::log(x / mean) + y * std::log(y / mean)) / 2;
  }
  return std::sqrt(std::max(0.0, sum));
}

// The smallest number of entries that hold `gamma` of the mass.
std::int64_t count_of_mass(std::vector<float> x, double gamma) {
  std::sort(x.begin(), x.end(), std::greater<>());
  const double wanted = gamma * std::accumulate(x.begin(), x.end(), 0.0);
  double held = 0;
  std::int64_t n = 0;
  while (n < static_cast<std::int64_t>(x.size()) && held < wanted) held += x[static_cast<std::size_t>(n++)];
  return n;
}

std::vector<std::int32_t> best_blocks(const FlexBlocks& a, const std::vector<float>& tokens, bool is_query_aware) {
  constexpr std::int64_t kTokensPerBlock = 128;  // whatever the block, as in the authors' code
  const std::int64_t wanted = is_query_aware ? 0 : count_of_mass(tokens, a.gamma) / kTokensPerBlock + 1;
  std::vector<float> sums = added_in_blocks(tokens, a.prompt.block);
  sums.front() = std::numeric_limits<float>::infinity();
  return best_of(sums, std::clamp<std::int64_t>(wanted, a.min_blocks, std::max(a.min_blocks, a.max_blocks)));
}

// Pairs of blocks of all rows together, by falling probability.
void mark_pairs(const FlexBlocks& a, const FlexMeans& means, std::int64_t head) {
  struct BlockPair {
    float p;
    std::int64_t row, block;
  };
  const PromptBlocks& p = a.prompt;
  std::vector<BlockPair> pairs;
  for (std::int64_t b = 0; b < p.num_query_blocks(); ++b) {
    const std::vector<float> row = pooled_row(a, means, means.q.data() + b * p.head_dim, p.first_block() + b + 1);
    for (std::size_t j = 0; j < row.size(); ++j) pairs.push_back({row[j], b, static_cast<std::int64_t>(j)});
  }
  std::stable_sort(pairs.begin(), pairs.end(), [](const BlockPair& x, const BlockPair& y) { return x.p > y.p; });
  const double most = a.gamma * static_cast<double>(p.num_query_blocks());
  double held = 0;
  for (const BlockPair& pair : pairs) {
    held += pair.p;
    if (held > most) return;
    mark(a.marks + (head * p.num_query_blocks() + pair.row) * p.mark_words(), pair.block);
  }
}

void mark_columns_and_diagonals(const FlexBlocks& a, const WindowSums& sums, bool is_query_aware, std::int64_t head) {
  const PromptBlocks& p = a.prompt;
  const std::vector<std::int32_t> columns = best_blocks(a, sums.columns, is_query_aware);
  const std::vector<std::int32_t> diagonals = best_blocks(a, sums.diagonals, is_query_aware);
  for (std::int64_t b = 0; b < p.num_query_blocks(); ++b) {
    const std::int64_t own = p.first_block() + b;
    std::int32_t* const words = a.marks + (head * p.num_query_blocks() + b) * p.mark_words();
    for (const std::int32_t j : columns)
      if (j <= own) mark(words, j);
    for (const std::int32_t o : diagonals)
      if (o <= own) mark(words, own - o);
  }
}

void mark_flex_head(const FlexBlocks& a, std::int64_t head) {
  const PromptBlocks& p = a.prompt;
  const std::int64_t d = p.head_dim, w = std::min<std::int64_t>(p.block, p.new_tokens);
  WindowSums sums = window_sums(p, w, head);
  for (float& x : sums.columns) x /= static_cast<float>(w);
  FlexMeans means;
  means.q = block_means(p.q, p.new_tokens, p.q_heads, head, d, p.kv_before, p.block);
  means.k = block_means(p.k, p.end(), p.kv_heads, head / p.group(), d, 0, p.block);
  std::vector<float> last(static_cast<std::size_t>(d));
  for (std::int64_t i = p.new_tokens - w; i < p.new_tokens; ++i)
    for (std::int64_t c = 0; c < d; ++c) last[static_cast<std::size_t>(c)] += p.query(i, head)[c] / static_cast<float>(w);
  const std::vector<float> estimated = pooled_row(a, means, last.data(), p.num_key_blocks());
  const bool is_query_aware = divergence_root(estimated, added_in_blocks(sums.columns, p.block)) < a.tau;
  mark_columns_and_diagonals(a, sums, is_query_aware, head);
  if (is_query_aware) mark_pairs(a, means, head);
}

}  // namespace

void run_cpu(const FlexBlocks& a) {
  if (a.prompt.new_tokens == 0) return;
  for_each_in_parallel(a.prompt.q_heads, [&](std::int64_t head) { mark_flex_head(a, head); });
}

}  // namespace kvlab
