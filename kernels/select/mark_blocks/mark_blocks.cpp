#include "kernels/select/mark_blocks/mark_blocks.h"

#include <algorithm>

namespace kvlab {

namespace {

struct MarkedHeads {
  std::int64_t q = 0, kv = 0;
};

MarkedHeads marked_heads(const MarkBlocks& a) {
  std::int64_t heads = 0;
  for (std::int64_t h = 0; h < a.prompt.q_heads; ++h) heads += a.marks_head(h) ? 1 : 0;
  return {heads, ceil_div(heads, a.prompt.group())};
}

// Visible pairs of the last w queries.
std::int64_t window_pairs(const PromptBlocks& p, std::int64_t w) { return w * p.end() - w * (w - 1) / 2; }

// f(head, blocks up to the own one) per list.
template <class F>
void for_each_list(const MarkBlocks& a, F&& f) {
  for (std::int64_t h = 0; h < a.prompt.q_heads; ++h)
    for (std::int64_t b = 0; a.marks_head(h) && b < a.prompt.num_query_blocks(); ++b) f(h, a.prompt.first_block() + b + 1);
}

void cost_local(const MarkBlocks& a, std::int64_t, OpCall& c) {
  c.op = "local_blocks";
  for_each_list(a, [&](std::int64_t h, std::int64_t before) {
    const auto blocks = [&](std::int32_t tokens) -> std::int64_t { return ceil_div(tokens, a.prompt.block); };
    const std::int64_t own = before - 1, sinks = std::min(own, blocks(a.first[h]));
    c.outputs += before - std::max<std::int64_t>(0, std::max<std::int64_t>(0, own - blocks(a.second[h])) - sinks);
  });
  c.bytes = 8 * c.rows * a.prompt.num_query_blocks() * a.prompt.mark_words();
}

void cost_pooled(const MarkBlocks& a, std::int64_t kv_heads, OpCall& c) {
  const PromptBlocks& p = a.prompt;
  c.op = "pooled_blocks";
  for_each_list(a, [&](std::int64_t h, std::int64_t before) { c.outputs += std::min<std::int64_t>(a.first[h], before); });
  const std::int64_t keys = kv_heads * p.end(), queries = c.rows * p.new_tokens;
  c.flops = (queries + keys) * p.head_dim + c.rows * p.causal_blocks() * (2 * p.head_dim + 1);
  c.bytes = (queries * p.activation_bytes + keys * p.kv_bytes) * p.head_dim + 4 * c.rows * p.num_query_blocks() * p.mark_words();
}

void cost_vertical_slash(const MarkBlocks& a, std::int64_t kv_heads, OpCall& c) {
  const PromptBlocks& p = a.prompt;
  c.op = "vertical_slash";
  for (std::int64_t h = 0; h < p.q_heads; ++h)
    if (a.marks_head(h)) c.outputs += std::min<std::int64_t>(a.first[h], p.end()) + std::min<std::int64_t>(a.second[h], p.end());
  const std::int64_t w = std::min<std::int64_t>(a.window_queries, p.new_tokens);
  const std::int64_t marks = c.rows * (p.num_query_blocks() * p.mark_words() + p.column_words());
  c.flops = c.rows * window_pairs(p, w) * (2 * p.head_dim + 5);
  c.bytes = (c.rows * w * p.activation_bytes + kv_heads * p.end() * p.kv_bytes) * p.head_dim + 4 * marks;
}

void cost_of_all_queries(const MarkBlocks& a, std::int64_t flops, OpCall& c) {
  const PromptBlocks& p = a.prompt;
  c.outputs = p.num_lists();
  c.bytes =
      (p.q_heads * p.new_tokens * p.activation_bytes + p.kv_heads * p.end() * p.kv_bytes) * p.head_dim + 4 * p.num_lists() * p.mark_words();
  c.flops = flops;
}

void cost_flex(const MarkBlocks& a, std::int64_t, OpCall& c) {
  const PromptBlocks& p = a.prompt;
  c.op = "flex_blocks";
  const std::int64_t pairs = window_pairs(p, std::min<std::int64_t>(p.block, p.new_tokens));
  const std::int64_t products = p.q_heads * (pairs + p.causal_blocks() + p.num_key_blocks());
  cost_of_all_queries(a, products * (2 * p.head_dim + 5) + (p.q_heads * p.new_tokens + p.kv_heads * p.end()) * p.head_dim, c);
}

void cost_antidiagonal(const MarkBlocks& a, std::int64_t, OpCall& c) {
  const PromptBlocks& p = a.prompt;
  c.op = "antidiagonal_blocks";
  const std::int64_t queries = query_blocks(p.new_tokens, p.kv_before, a.stride), before = p.kv_before / a.stride;
  const std::int64_t pairs = p.q_heads * (queries * before + queries * (queries + 1) / 2);
  cost_of_all_queries(a, pairs * (2 * p.head_dim * a.stride + 3), c);
}

}  // namespace

OpCall call(const MarkBlocks& a) {
  constexpr decltype(&cost_local) kCosts[] = {cost_local, cost_pooled, cost_vertical_slash, cost_flex, cost_antidiagonal};
  const MarkedHeads heads = marked_heads(a);
  OpCall c{.op = {}, .rows = heads.q, .tokens = heads.q * a.prompt.end()};
  kCosts[static_cast<std::size_t>(a.kind)](a, heads.kv, c);
  return c;
}
KVLAB_WITHOUT_CUDA(MarkBlocks)

}  // namespace kvlab
