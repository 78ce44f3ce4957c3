#include <algorithm>
#include <vector>

#include "kernels/attention/attention_stats/stats_queries.cuh"
#include "kernels/score/token_stats/token_stats.h"
#include "kernels/select/top_k/top_k.h"

namespace kvlab {

namespace {

constexpr float kHit = -1.0F;                                // below every probability
constexpr std::int64_t kMostTogether = 64;                   // queries of a sequence
constexpr std::int64_t kMostLines = std::int64_t{16} << 20;  // floats of scratch memory
constexpr std::int64_t kMostMarked = 512;                    // lines with marks: long ones need 24 KiB each

// At positions from `position` on.
struct QuerySteps {
  std::int32_t position, count;
};

// p [steps, tokens]: a line per query, 0 if hidden; or one line with sums over all queries (`squares`: of squares) as for the last.
// `tokens`: kv.total().
struct Update {
  TokenStats::Kind kind;
  DeviceRows kv;
  std::uint32_t* words;  // the first channel in use
  const float *p, *squares;
  std::int64_t tokens;
  float decay;
  std::int32_t ring_tokens;
  bool threshold_by_position;
  float threshold;
  const QuerySteps* steps;  // [sequences]

  __device__ std::int64_t count(int row) const { return steps[row / kv.kv_heads].count == 0 ? 0 : kv.len[row]; }
  __device__ void add(std::uint32_t& word, float factor, float x) const {
    word = __float_as_uint(__fadd_rn(__fmul_rn(factor, __uint_as_float(word)), x));
  }
  __device__ void operator()(int row, std::int64_t i) const {
    const std::int64_t slot = kv.slot(row, static_cast<std::int32_t>(i)), at = kv.first[row] + i;
    const QuerySteps mine = steps[row / kv.kv_heads];
    for (std::int32_t t = max(0, kv.position[slot] - mine.position); t < mine.count; ++t)
      take(row, slot, mine.position + t, t * tokens + at);
  }
  __device__ void take(int row, std::int64_t slot, std::int32_t query, std::int64_t at) const {
    std::uint32_t& word = words[slot];
    const auto now = static_cast<std::uint32_t>(query) + 1;
    switch (kind) {
      case TokenStats::Kind::kSum:
        return add(word, decay, p[at]);
      case TokenStats::Kind::kMoments:
        add(word, 1.0F, p[at]);
        return add(words[kv.pool_tokens + slot], 1.0F, squares[at]);
      case TokenStats::Kind::kRing: {
        const std::int32_t bit = query % ring_tokens;
        const std::uint32_t mask = 1U << (bit % 32);
        std::uint32_t& bits = words[bit / 32 * kv.pool_tokens + slot];
        const float least = 1.0F / static_cast<float>(threshold_by_position ? query + 1 : count_visible(kv, row, query));
        bits = p[at] >= least ? bits | mask : bits & ~mask;
        return;
      }
      case TokenStats::Kind::kRecurrence: {
        if (p[at] < threshold) return;
        const std::uint32_t before = word != 0 ? word : static_cast<std::uint32_t>(kv.position[slot]) + 1;
        std::uint32_t& gap = words[kv.pool_tokens + slot];
        gap = max(gap, now - before);
        word = now;
        return;
      }
      case TokenStats::Kind::kTopHits:
        if (p[at] != kHit) return;
        word = now;
        ++words[kv.pool_tokens + slot];
        return;
    }
  }
};

AttentionStats attention_of(const TokenStats& a, const Queries* queries) {
  AttentionStats stats;
  stats.kv = a.kv, stats.queries = queries, stats.group = a.group, stats.weigh_by_visible = a.weigh_by_visible;
  return stats;
}

void update(const TokenStats& a, const DeviceRows& kv, const std::vector<QuerySteps>& steps, const float* p, const float* squares,
            CudaContext& cuda) {
  launch_over_rows("token_stats", cuda, kv.num_rows, kv.longest,
                   Update{a.kind, kv, kv.words + a.first_word * kv.pool_tokens, p, squares, a.kv.total(), a.decay, a.ring_tokens,
                          a.threshold_by_position, a.threshold, cuda.upload(steps.data(), a.kv.num_sequences())});
}

// In any order of queries.
void add_all(const TokenStats& a, const DeviceRows& kv, CudaContext& cuda) {
  const CudaContext::Frame frame(cuda);
  const std::int64_t tokens = a.kv.total();
  AttentionStats stats = attention_of(a, a.queries);
  stats.sum = cuda.scratch<float>(tokens), stats.wants_sum_sq = a.kind == TokenStats::Kind::kMoments;
  if (stats.wants_sum_sq) stats.sum_sq = cuda.scratch<float>(tokens);
  for (float* const sums : {stats.sum, stats.sum_sq})
    if (sums != nullptr) cuda::fill(sums, 0, 4 * tokens, cuda.stream());
  run_cuda(stats, cuda);
  std::vector<QuerySteps> last;
  for (std::int32_t s = 0; s < a.kv.num_sequences(); ++s)
    last.push_back({a.queries[s].first_position + a.queries[s].count - 1, std::min(1, a.queries[s].count)});
  update(a, kv, last, stats.sum, stats.sum_sq, cuda);
}

void mark_hits(const TokenStats& a, std::int32_t steps, float* lines, CudaContext& cuda) {
  std::vector<SelectRow> rows;
  for (std::int32_t t = 0; t < steps; ++t) {
    for (std::int32_t r = 0; r < a.kv.num_rows; ++r) {
      float* const line = lines + t * a.kv.total() + a.kv.first[r];
      rows.push_back({line, line, a.kv.len[r], a.top});
    }
  }
  mark_largest(rows, kHit, cuda);
}

// In query order. A range of one, as in decode steps, is summed: this splits long rows over blocks.
void add_in_order(const TokenStats& a, const DeviceRows& kv, QueryRange range, float* lines, CudaContext& cuda) {
  const CudaContext::Frame frame(cuda);
  const std::int64_t width = static_cast<std::int64_t>(a.kv.kv_heads) * a.kv.group * a.kv.head_dim;
  std::vector<Queries> one;
  std::vector<QuerySteps> steps;
  for (std::int32_t s = 0; s < a.kv.num_sequences(); ++s) {
    const Queries& q = a.queries[s];
    steps.push_back({q.first_position + range.begin, std::clamp(q.count - range.begin, 0, range.count)});
    one.push_back(steps.back().count == 0 ? Queries{} : Queries{q.data + range.begin * width, 1, steps.back().position});
  }
  if (range.count == 1) {
    AttentionStats stats = attention_of(a, one.data());
    stats.sum = lines;
    cuda::fill(lines, 0, 4 * a.kv.total(), cuda.stream());
    run_cuda(stats, cuda);
  } else {
    write_query_lines(attention_of(a, a.queries), kv, range, lines, cuda);
  }
  if (a.kind == TokenStats::Kind::kTopHits) mark_hits(a, range.count, lines, cuda);
  update(a, kv, steps, lines, nullptr, cuda);
}

// Up to `most` queries with lines in scratch memory.
std::int32_t taken_together(const TokenStats& a, std::int32_t most) {
  std::int64_t n = std::min({std::int64_t{most}, kMostTogether, kMostLines / a.kv.total()});
  if (a.kind == TokenStats::Kind::kTopHits) n = std::min(n, kMostMarked / a.kv.num_rows);
  return static_cast<std::int32_t>(std::max<std::int64_t>(1, n));
}

}  // namespace

void run_cuda(const TokenStats& a, CudaContext& cuda) {
  if (a.noise_seeds != nullptr) throw CudaError("token_stats: attention with Gumbel noise runs on the CPU alone");
  if (a.kv.total() == 0) return;
  const CudaContext::Frame frame(cuda);
  const DeviceRows kv = on_device(a.kv, cuda);
  const bool is_sum = a.kind == TokenStats::Kind::kMoments || (a.kind == TokenStats::Kind::kSum && a.decay == 1.0F);
  if (is_sum) return add_all(a, kv, cuda);
  std::int32_t most = 0;
  for (std::int32_t s = 0; s < a.kv.num_sequences(); ++s) most = std::max(most, a.queries[s].count);
  if (most == 0) return;
  const std::int32_t together = taken_together(a, most);
  auto* const lines = cuda.scratch<float>(together * a.kv.total());
  for (std::int32_t begin = 0; begin < most; begin += together) add_in_order(a, kv, {begin, std::min(together, most - begin)}, lines, cuda);
}

}  // namespace kvlab
