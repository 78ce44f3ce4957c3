#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/score/token_stats/token_stats.h"

namespace kvlab {

// Adds each token's attention from probe queries, averaged over the group's heads, to word `channel` (float32): TokenStats for each piece
// of consecutive probes.
struct ProbeSums {
  KvRows kv;
  std::int32_t channel = 0;
  const std::int64_t* first = nullptr;  // [num_sequences + 1] pieces of a sequence
  const Queries* pieces = nullptr;      // ascending by position
  const std::int32_t* end = nullptr;    // [num_sequences] one past the position of the sequence's newest token
};

// K is read once, with probes and words; products and softmax of causal pairs. Sequences without probes cost nothing.
inline OpCall call(const ProbeSums& a) {
  OpCall c{.op = "probe_sums", .rows = a.kv.num_rows};
  for (std::int32_t r = 0; r < a.kv.num_rows; ++r) {
    const std::int32_t s = a.kv.sequence(r);
    const std::int64_t n = a.kv.len[r];
    std::int64_t probes = 0, pairs = 0;
    for (std::int64_t j = a.first[s]; j < a.first[s + 1]; ++j) {
      const Queries& piece = a.pieces[j];
      const std::int64_t later = a.end[s] - (piece.first_position + piece.count);
      probes += piece.count;
      pairs += causal_pairs(piece.count, std::max<std::int64_t>(0, n - later));
    }
    if (probes == 0) continue;
    c.tokens += n;
    c.outputs += n;
    c.bytes += n * (static_cast<std::int64_t>(a.kv.head_dim) * a.kv.kv_bytes + 8) + probes * a.kv.group * a.kv.head_dim * 2;
    c.flops += 2 * pairs * (a.kv.group * (a.kv.head_dim + 1) + 1);
  }
  return c;
}

template <class Run>
void run_pieces(const ProbeSums& a, Run&& run) {
  const auto sequences = static_cast<std::size_t>(a.kv.num_sequences());
  std::int64_t most = 0;
  for (std::size_t s = 0; s < sequences; ++s) most = std::max(most, a.first[s + 1] - a.first[s]);
  std::vector<Queries> queries(sequences);
  for (std::int64_t j = 0; j < most; ++j) {
    for (std::size_t s = 0; s < sequences; ++s) queries[s] = a.first[s] + j < a.first[s + 1] ? a.pieces[a.first[s] + j] : Queries{};
    TokenStats stats{.kv = a.kv, .queries = queries.data(), .first_word = a.channel};
    run(stats);
  }
}
inline void run_cpu(const ProbeSums& a) {
  run_pieces(a, [](const TokenStats& stats) { run_cpu(stats); });
}
inline void run_cuda(const ProbeSums& a, CudaContext& cuda) {
  run_pieces(a, [&](const TokenStats& stats) { run_cuda(stats, cuda); });
}

}  // namespace kvlab
