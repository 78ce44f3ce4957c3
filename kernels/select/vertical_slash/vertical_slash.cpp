#include "kernels/select/vertical_slash/vertical_slash.h"

#include <algorithm>

namespace kvlab {

OpCall call(const VerticalSlash& a) {
  const PromptBlocks& p = a.prompt;
  OpCall c{.op = "vertical_slash"};
  for (std::int64_t h = 0; h < p.q_heads; ++h) {
    if (a.columns[h] == 0 && a.diagonals[h] == 0) continue;
    ++c.rows;
    c.outputs += std::min<std::int64_t>(a.columns[h], p.end()) + std::min<std::int64_t>(a.diagonals[h], p.end());
  }
  const std::int64_t w = std::min<std::int64_t>(a.window_queries, p.new_tokens);
  const std::int64_t pairs = w * p.end() - w * (w - 1) / 2;
  c.tokens = c.rows * p.end();
  c.flops = c.rows * pairs * (2 * p.head_dim + 5);
  const std::int64_t marks = c.rows * (p.num_query_blocks() * p.mark_words() + p.column_words());
  c.bytes = c.rows * w * p.head_dim * p.activation_bytes + ceil_div(c.rows, p.group()) * p.end() * p.head_dim * p.kv_bytes + 4 * marks;
  return c;
}

}  // namespace kvlab
