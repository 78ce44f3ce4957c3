#include "policies/kv/scorer/whole_chunks/whole_chunks.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "base/ceil_div.h"

namespace kvlab {

// One score per chunk is read, one count per row written.
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

void run_cpu(const WholeChunks& a) {
  std::vector<std::int32_t> order;
  for (std::int32_t r = 0; r < a.num_rows; ++r) {
    const std::int32_t chunks = ceil_div(a.len[r], a.chunk_tokens);
    const float* scores = a.scores + a.first[r] + a.begin[r];
    order.resize(static_cast<std::size_t>(chunks));
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](std::int32_t x, std::int32_t y) {
      return scores[static_cast<std::int64_t>(x) * a.chunk_tokens] > scores[static_cast<std::int64_t>(y) * a.chunk_tokens];
    });
    auto kept = static_cast<std::int32_t>(a.first[r + 1] - a.first[r]) - a.len[r];
    for (std::int32_t i = 0; i < (a.num_chunks == nullptr ? chunks : std::min(chunks, a.num_chunks[r])); ++i) {
      const std::int32_t tokens = std::min(a.chunk_tokens, a.len[r] - order[static_cast<std::size_t>(i)] * a.chunk_tokens);
      if (a.num_chunks == nullptr && kept + tokens > a.keep[r]) break;
      kept += tokens;
    }
    a.keep[r] = a.num_chunks == nullptr ? std::min(kept, a.keep[r]) : kept;
  }
}

}  // namespace kvlab
