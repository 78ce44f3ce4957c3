#include <algorithm>

#include "kernels/score/token_stats/token_stats.h"
#include "policies/kv/format/probe_mean/probe_mean.h"

namespace kvlab {

void run_cuda(const ProbeSums& a, CudaContext& cuda) {
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
    run_cuda(stats, cuda);
  }
}

}  // namespace kvlab
