#include "kernels/attention/sparse_prefill/sparse_prefill.h"

#include <algorithm>

namespace kvlab {

namespace {

// Keys read by a query block, and its pairs.
struct ListCounts {
  std::int64_t tokens = 0, pairs = 0;
};

ListCounts count_list(const SparsePrefill& a, std::int64_t list, std::int64_t query_block) {
  const std::int64_t block = a.keys.block, at = (a.kv_before / block + query_block) * block;
  const std::int64_t begin = std::max(a.kv_before, at) - at, end = std::min(a.kv_before + a.new_tokens, at + block) - at;  // of its queries
  const std::int64_t blocks = a.keys.block_first[list + 1] - a.keys.block_first[list];
  const std::int64_t columns = a.keys.column_first == nullptr ? 0 : a.keys.column_first[list + 1] - a.keys.column_first[list];
  const std::int64_t before = columns + std::max<std::int64_t>(blocks - 1, 0) * block;
  if (blocks == 0) return {before, before * (end - begin)};
  return {before + end, before * (end - begin) + end * (end + 1) / 2 - begin * (begin + 1) / 2};
}

}  // namespace

OpCall call(const SparsePrefill& a) {
  OpCall c{.op = "sparse_prefill", .rows = a.kv_heads, .outputs = a.new_tokens * a.q_heads};
  const std::int64_t blocks = query_blocks(a), group = a.q_heads / a.kv_heads, lists = a.q_heads * blocks;
  std::int64_t pairs = 0;
  for (std::int64_t g = 0; g < a.kv_heads; ++g) {
    std::int64_t tokens = 0;
    for (std::int64_t list = g * group * blocks; list < (g + 1) * group * blocks; ++list) {
      const ListCounts n = count_list(a, list, list % blocks);
      tokens += n.tokens, pairs += n.pairs;
    }
    c.tokens += tokens;
    c.bytes += 2 * std::min(tokens, a.kv_before + a.new_tokens) * a.head_dim * a.kv_bytes;
  }
  c.bytes += 2 * c.outputs * a.head_dim * a.activation_bytes;
  if (lists > 0) c.bytes += 4 * a.keys.block_first[lists] + (a.keys.column_first == nullptr ? 0 : 4 * a.keys.column_first[lists]);
  c.flops = 4 * pairs * a.head_dim;
  return c;
}
KVLAB_WITHOUT_CUDA(SparsePrefill)

}  // namespace kvlab
