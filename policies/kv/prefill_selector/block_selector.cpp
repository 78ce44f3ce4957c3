#include "policies/kv/prefill_selector/block_selector.h"

#include <algorithm>
#include <cmath>

#include "kernels/select/list_marked_op.h"
#include "policies/kv/step_arrays.h"

namespace kvlab {

BlockSelector::BlockSelector(Params& p, std::int32_t block_tokens)
    : block_(p.optional<std::int32_t>("block_tokens", block_tokens, 1, 1 << 16, "tokens of a block of queries and of keys")),
      dense_layers_(p.optional<std::int32_t>("dense_layers", 0, 0, 1 << 16, "first layers in which prompts attend to every token")) {}

// Counted on data; expected or recorded on shapes.
BlockSelector::Counts BlockSelector::count(const PromptChunk& chunk, const PromptBlocks& prompt, const Marks& marks) const {
  const std::int64_t lists = prompt.num_lists();
  Counts counts{chunk.ops.host_ints(lists), chunk.ops.host_ints(has_columns() ? lists : 0)};
  for (std::int64_t i = 0; i < lists; ++i) {
    const auto before = static_cast<std::int32_t>(prompt.first_block() + i % prompt.num_query_blocks()) + 1;
    counts.blocks[i] = std::clamp(expected_blocks(prompt, i, before), 1, before);
    if (has_columns()) counts.columns[i] = std::clamp(expected_columns(prompt, i, before), 0, (before - counts.blocks[i]) * prompt.block);
  }
  if (!depends_on_data()) return counts;
  ListMarked op{prompt, marks.blocks, marks.columns, has_columns()};
  op.num_blocks = counts.blocks, op.num_columns = has_columns() ? counts.columns : nullptr;
  chunk.ops(op);
  chunk.ops.settle("prefill_blocks", chunk.layer, {counts.blocks, static_cast<std::size_t>(lists)});
  if (has_columns()) chunk.ops.settle("prefill_columns", chunk.layer, {counts.columns, static_cast<std::size_t>(lists)});
  return counts;
}

std::int64_t BlockSelector::attend(const PromptChunk& chunk) {
  Ops& ops = chunk.ops;
  const PromptBlocks prompt = chunk.blocks(block_);
  const auto zeros = [&](std::int64_t n) {
    float* const words = ops.floats(n);
    ops.zero(words, n);
    return reinterpret_cast<std::int32_t*>(words);
  };
  Marks marks{zeros(prompt.num_lists() * prompt.mark_words()), nullptr};
  if (has_columns()) marks.columns = zeros(prompt.q_heads * prompt.column_words());
  choose(chunk, prompt, marks);
  const Counts counts = count(chunk, prompt, marks);
  SparseKeys keys{block_, prefix_sums(ops, prompt.num_lists(), [&](std::int32_t i) { return counts.blocks[i]; }), nullptr, nullptr,
                  nullptr};
  if (has_columns()) keys.column_first = prefix_sums(ops, prompt.num_lists(), [&](std::int32_t i) { return counts.columns[i]; });
  std::int32_t* const blocks = ops.ints(keys.block_first[prompt.num_lists()]);
  std::int32_t* const columns = has_columns() ? ops.ints(keys.column_first[prompt.num_lists()]) : nullptr;
  ops(ListMarked{prompt, marks.blocks, marks.columns, has_columns(), nullptr, nullptr, keys.block_first, keys.column_first, blocks,
                 columns});
  keys.blocks = blocks, keys.columns = columns;
  SparsePrefill attention;
  attention.q = chunk.q, attention.k = chunk.k, attention.v = chunk.v, attention.out = chunk.out, attention.log_sum = chunk.log_sum;
  attention.new_tokens = prompt.new_tokens, attention.kv_before = prompt.kv_before;
  attention.q_heads = prompt.q_heads, attention.kv_heads = prompt.kv_heads, attention.head_dim = prompt.head_dim;
  attention.scale = 1.0F / std::sqrt(static_cast<float>(prompt.head_dim));
  attention.window = chunk.window;
  attention.keys = keys;
  attention.activation_bytes = prompt.activation_bytes, attention.kv_bytes = prompt.kv_bytes;
  ops(attention);
  return call(attention).flops / (4 * prompt.head_dim);
}

std::int32_t* for_heads(Ops& ops, std::int64_t q_heads, std::int32_t count) {
  return per_row(ops, q_heads, [&](std::int32_t) { return count; });
}

}  // namespace kvlab
