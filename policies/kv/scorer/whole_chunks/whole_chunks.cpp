#include "policies/kv/scorer/whole_chunks/whole_chunks.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "base/ceil_div.h"
#include "kernels/select/top_k/take_best.h"

namespace kvlab {

OpCall call(const WholeChunks& a) {
  std::int64_t chunks = 0;
  for (std::int32_t r = 0; r < a.num_rows; ++r) chunks += ceil_div(a.len[r], a.chunk_tokens);
  return {.op = "whole_chunks",
          .rows = a.num_rows,
          .tokens = chunks,
          .outputs = a.num_rows,
          .bytes = 4 * chunks + 4 * a.num_rows,
          .flops = 2 * chunks};
}
KVLAB_WITHOUT_CUDA(WholeChunks)

namespace {

// Best first. With peer_ties only the first `kept` are in front.
void rank_chunks(const WholeChunks& a, std::int32_t row, std::int32_t kept, std::vector<Candidate>& order) {
  const float* scores = a.scores + a.first[row] + a.begin[row];
  order.clear();
  for (std::int64_t at = 0; at < a.len[row]; at += a.chunk_tokens)
    order.push_back({rank_value(scores[at]), static_cast<std::int64_t>(order.size())});
  if (a.peer_ties) {
    take_best(order, kept, true);
  } else {
    std::sort(order.begin(), order.end(), better);
  }
}

}  // namespace

void run_cpu(const WholeChunks& a) {
  std::vector<Candidate> order;
  for (std::int32_t r = 0; r < a.num_rows; ++r) {
    const std::int32_t chunks = ceil_div(a.len[r], a.chunk_tokens);
    if (chunks == 0) continue;
    const std::int32_t most = a.num_chunks == nullptr ? chunks : std::min(chunks, a.num_chunks[r]);
    rank_chunks(a, r, most, order);
    auto kept = static_cast<std::int32_t>(a.first[r + 1] - a.first[r]) - a.len[r];
    std::int32_t taken = 0;
    for (; taken < most; ++taken) {
      const auto chunk = static_cast<std::int32_t>(order[static_cast<std::size_t>(taken)].at);
      const std::int32_t tokens = std::min(a.chunk_tokens, a.len[r] - chunk * a.chunk_tokens);
      if (a.num_chunks == nullptr && kept + tokens > a.keep[r]) break;
      kept += tokens;
    }
    a.keep[r] = a.num_chunks == nullptr ? std::min(kept, a.keep[r]) : kept;
    for (std::int32_t i = taken; a.peer_ties && i < chunks; ++i) {
      const std::int64_t at = order[static_cast<std::size_t>(i)].at * a.chunk_tokens;
      std::fill_n(a.lowered + a.first[r] + a.begin[r] + at, std::min<std::int64_t>(a.chunk_tokens, a.len[r] - at),
                  -std::numeric_limits<float>::infinity());
    }
  }
}

}  // namespace kvlab
