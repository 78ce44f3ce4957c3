#include <algorithm>

#include "kernels/attention_stats/attention_stats.h"
#include "kernels/cuda/device_rows.h"
#include "kernels/cuda/over_rows.cuh"
#include "kernels/cuda/upload.h"
#include "kernels/token_stats/token_stats.h"
#include "kernels/top_k/select_rows.h"

namespace kvlab {

namespace {

constexpr float kHit = 2.0F;  // above every probability

// p [kv.total()]: sums over the queries (`squares`: of their squares), or one query's line, 0 where the query does not see a token.
struct Update {
  TokenStats::Kind kind;
  DeviceRows kv;
  std::uint32_t* words;  // the first channel in use
  const float *p, *squares;
  float decay;
  std::int32_t ring_tokens;
  bool threshold_by_position;
  float threshold;
  const std::int32_t* query_position;  // [sequences] -1: no query

  __device__ std::int64_t count(int row) const { return query_position[row / kv.kv_heads] < 0 ? 0 : kv.len[row]; }
  __device__ std::int32_t position(int row, std::int32_t i) const { return kv.position[kv.slot(row, i)]; }
  __device__ std::int32_t num_visible(int row, std::int32_t query) const {
    std::int32_t begin = 0, end = kv.len[row];
    while (begin < end) {
      const std::int32_t middle = begin + (end - begin) / 2;
      if (position(row, middle) <= query)
        begin = middle + 1;
      else
        end = middle;
    }
    return begin;
  }
  __device__ void add(std::uint32_t& word, float factor, float x) const {
    word = __float_as_uint(__fadd_rn(__fmul_rn(factor, __uint_as_float(word)), x));
  }
  __device__ void operator()(int row, std::int64_t i) const {
    const std::int64_t slot = kv.slot(row, static_cast<std::int32_t>(i)), at = kv.first[row] + i;
    const std::int32_t query = query_position[row / kv.kv_heads];
    std::uint32_t& word = words[slot];
    if (kv.position[slot] > query) return;
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
        const float least = 1.0F / static_cast<float>(threshold_by_position ? query + 1 : num_visible(row, query));
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

// What AttentionStats gives for the same queries.
struct Lines {
  float *sum, *squares;
};
void attention_of(const TokenStats& a, const Queries* queries, const Lines& lines, CudaContext& cuda) {
  AttentionStats stats;
  stats.kv = a.kv, stats.queries = queries, stats.group = a.group, stats.weigh_by_visible = a.weigh_by_visible;
  stats.sum = lines.sum, stats.wants_sum_sq = lines.squares != nullptr, stats.sum_sq = lines.squares;
  cuda::fill(lines.sum, 0, 4 * a.kv.total(), cuda.stream());
  if (lines.squares != nullptr) cuda::fill(lines.squares, 0, 4 * a.kv.total(), cuda.stream());
  run_cuda(stats, cuda);
}

// Position of the last query of each sequence, -1 where there is none.
std::vector<std::int32_t> last_positions(const Queries* queries, std::int32_t sequences) {
  std::vector<std::int32_t> last;
  for (std::int32_t s = 0; s < sequences; ++s)
    last.push_back(queries[s].count == 0 ? -1 : queries[s].first_position + queries[s].count - 1);
  return last;
}

void mark_hits(const TokenStats& a, float* p, CudaContext& cuda) {
  std::vector<SelectRow> rows;
  for (std::int32_t r = 0; r < a.kv.num_rows; ++r) {
    float* const line = p + a.kv.first[r];
    rows.push_back({line, line, a.kv.len[r], a.top});
  }
  mark_largest(rows, kHit, cuda);
}

// The t-th query of each sequence alone.
std::vector<Queries> queries_at(const TokenStats& a, std::int32_t t) {
  const std::int64_t width = static_cast<std::int64_t>(a.kv.kv_heads) * a.kv.group * a.kv.head_dim;
  std::vector<Queries> at;
  for (std::int32_t s = 0; s < a.kv.num_sequences(); ++s) {
    const Queries& q = a.queries[s];
    at.push_back(t < q.count ? Queries{q.data + t * width, 1, q.first_position + t} : Queries{});
  }
  return at;
}

}  // namespace

void run_cuda(const TokenStats& a, CudaContext& cuda) {
  if (a.noise_seeds != nullptr) throw CudaError("token_stats: attention with Gumbel noise runs on the CPU alone");
  if (a.kv.total() == 0) return;
  const CudaContext::Frame frame(cuda);
  const std::int32_t sequences = a.kv.num_sequences();
  const bool moments = a.kind == TokenStats::Kind::kMoments;
  const Lines lines{cuda.scratch<float>(a.kv.total()), moments ? cuda.scratch<float>(a.kv.total()) : nullptr};
  const DeviceRows kv = on_device(a.kv, cuda);
  const auto update = [&](const Queries* queries) {
    const CudaContext::Frame step(cuda);
    attention_of(a, queries, lines, cuda);
    if (a.kind == TokenStats::Kind::kTopHits) mark_hits(a, lines.sum, cuda);
    const std::vector<std::int32_t> last = last_positions(queries, sequences);
    launch_over_rows("token_stats", cuda, kv.num_rows, kv.longest,
                     Update{a.kind, kv, kv.words + a.first_word * kv.pool_tokens, lines.sum, lines.squares, a.decay, a.ring_tokens,
                            a.threshold_by_position, a.threshold, cuda.upload(last.data(), sequences)});
  };
  if (moments || (a.kind == TokenStats::Kind::kSum && a.decay == 1.0F)) return update(a.queries);  // the order of queries is nothing to it
  std::int32_t most = 0;
  for (std::int32_t s = 0; s < sequences; ++s) most = std::max(most, a.queries[s].count);
  for (std::int32_t t = 0; t < most; ++t) update(queries_at(a, t).data());
}

}  // namespace kvlab
