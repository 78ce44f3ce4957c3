#include "base/parallel.h"
#include "kernels/dot_cpu.h"
#include "kernels/select/pooled_blocks/pooled_blocks.h"
#include "kernels/select/window_sums_cpu.h"

namespace kvlab {

void run_cpu(const PooledBlocks& a) {
  const PromptBlocks& p = a.prompt;
  const std::int64_t d = p.head_dim;
  for_each_in_parallel(p.q_heads, [&](std::int64_t head) {
    if (a.top[head] == 0) return;
    const std::vector<float> queries = block_means(p.q, p.new_tokens, p.q_heads, head, d, p.kv_before, p.block);
    const std::vector<float> keys = block_means(p.k, p.end(), p.kv_heads, head / p.group(), d, 0, p.block);
    for (std::int64_t b = 0; b < p.num_query_blocks(); ++b) {
      const std::int64_t own = p.first_block() + b;
      std::vector<float> products;
      for (std::int64_t j = 0; j < own; ++j) products.push_back(lane_dot(queries.data() + b * d, keys.data() + j * d, d));
      std::int32_t* const words = a.marks + (head * p.num_query_blocks() + b) * p.mark_words();
      for (const std::int32_t j : best_of(products, a.top[head] - 1)) mark(words, j);
      mark(words, own);
    }
  });
}

}  // namespace kvlab
