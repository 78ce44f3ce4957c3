#include "kernels/select/local_blocks/local_blocks.h"

#include <algorithm>

namespace kvlab {

namespace {

// Blocks [0, sinks) and [recent, own] of a list are marked.
struct LocalRange {
  std::int64_t sinks, recent, own;
};

LocalRange local_range(const LocalBlocks& a, std::int64_t list) {
  const PromptBlocks& p = a.prompt;
  const auto head = static_cast<std::size_t>(list / p.num_query_blocks());
  const std::int64_t own = p.first_block() + list % p.num_query_blocks();
  const auto blocks = [&](std::int32_t tokens) { return ceil_div(tokens, p.block); };
  return {std::min<std::int64_t>(own, blocks(a.sinks[head])), std::max<std::int64_t>(0, own - blocks(a.recent[head])), own};
}

bool takes_part(const LocalBlocks& a, std::int64_t head) { return a.sinks[head] > 0 || a.recent[head] > 0; }

}  // namespace

std::int64_t marked(const LocalBlocks& a, std::int64_t list) {
  const LocalRange r = local_range(a, list);
  return r.own + 1 - std::max<std::int64_t>(0, r.recent - r.sinks);
}

OpCall call(const LocalBlocks& a) {
  OpCall c{.op = "local_blocks"};
  for (std::int64_t h = 0; h < a.prompt.q_heads; ++h)
    if (takes_part(a, h)) ++c.rows;
  c.tokens = c.rows * a.prompt.end();
  for (std::int64_t list = 0; list < a.prompt.num_lists(); ++list)
    if (takes_part(a, list / a.prompt.num_query_blocks())) c.outputs += marked(a, list);
  c.bytes = 8 * c.rows * a.prompt.num_query_blocks() * a.prompt.mark_words();
  return c;
}

void run_cpu(const LocalBlocks& a) {
  for (std::int64_t list = 0; list < a.prompt.num_lists(); ++list) {
    if (!takes_part(a, list / a.prompt.num_query_blocks())) continue;
    const LocalRange r = local_range(a, list);
    std::int32_t* const words = a.marks + list * a.prompt.mark_words();
    for (std::int64_t j = 0; j < r.sinks; ++j) mark(words, j);
    for (std::int64_t j = r.recent; j <= r.own; ++j) mark(words, j);
  }
}

}  // namespace kvlab
