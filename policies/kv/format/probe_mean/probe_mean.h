#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/kv_rows.h"
#include "kernels/ops.h"
#include "kernels/score/token_stats/token_stats.h"

namespace kvlab {

// Adds each token's attention from probe queries, mean over the group, to word `channel` (float32), as TokenStats does.
struct ProbeSums {
  KvRows kv;
  std::int32_t channel = 0;
  const std::int64_t* first = nullptr;  // [num_sequences + 1] pieces, each of consecutive positions
  const Queries* pieces = nullptr;      // ascending by position
  const std::int32_t* end = nullptr;    // [num_sequences] one past the newest token's position
};
template <class Run>
void for_each_piece(const ProbeSums& a, Run&& run) {
  const auto sequences = static_cast<std::size_t>(a.kv.num_sequences());
  std::int64_t most = 0;
  for (std::size_t s = 0; s < sequences; ++s) most = std::max(most, a.first[s + 1] - a.first[s]);
  std::vector<Queries> queries(sequences);
  for (std::int64_t j = 0; j < most; ++j) {
    for (std::size_t s = 0; s < sequences; ++s) queries[s] = a.first[s] + j < a.first[s + 1] ? a.pieces[a.first[s] + j] : Queries{};
    TokenStats stats;
    stats.kv = a.kv;
    stats.queries = queries.data();
    stats.first_word = a.channel;
    run(stats);
  }
}
// Counts causal pairs. Sequences without probes cost nothing.
OpCall call(const ProbeSums&);
void run_cpu(const ProbeSums&);
void run_cuda(const ProbeSums&, CudaContext&);

// Number of a row's listed tokens, largest first, that hold at least `share` of the sum of their words (float32): ZipVL (He et al. 2024,
// arXiv:2410.08584, eq. 4).
struct CoverMass {
  KvRows kv;
  std::int32_t channel = 0;
  const std::int64_t* first = nullptr;  // [num_rows + 1]; entries of -1 hold nothing
  const std::int32_t* index = nullptr;
  double share = 0.975;
  std::int32_t* count = nullptr;  // [num_rows] out, real memory; untouched on shapes
};
OpCall call(const CoverMass&);
void run_cpu(const CoverMass&);
void run_cuda(const CoverMass&, CudaContext&);  // waits for the stream

}  // namespace kvlab
