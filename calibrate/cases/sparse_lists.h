#pragma once

#include <algorithm>
#include <vector>

#include "calibrate/cases/op_case.h"
#include "kernels/attention/sparse_prefill/sparse_prefill.h"

namespace kvlab {

// MInference-like, in CPU memory: per query head and block its own block, the first, and `percent` of the others at random.
inline SparseKeys draw_sparse_lists(Buffers& b, std::int64_t new_tokens, std::int64_t kv_before, std::int64_t q_heads,
                                    std::int64_t percent) {
  SparseKeys keys;
  const std::int64_t query_blocks = kvlab::query_blocks(new_tokens, kv_before, keys.block);
  std::vector<std::int64_t> first{0};
  std::vector<std::int32_t> blocks;
  for (std::int64_t list = 0; list < q_heads * query_blocks; ++list) {
    const std::int64_t own = kv_before / keys.block + list % query_blocks;
    for (std::int64_t i = 0; i <= own; ++i)
      if (i == 0 || i == own || static_cast<std::int64_t>(b.draw() % 100) < percent) blocks.push_back(static_cast<std::int32_t>(i));
    first.push_back(static_cast<std::int64_t>(blocks.size()));
  }
  keys.block_first = b.host(std::move(first)), keys.blocks = b.host(std::move(blocks));
  return keys;
}

// For head `head` at the chunk's token t.
inline std::vector<std::int64_t> seen_positions(const SparseKeys& keys, std::int64_t query_blocks, std::int64_t kv_before,
                                                std::int64_t head, std::int64_t t) {
  std::vector<std::int64_t> seen;
  const std::int64_t own = kv_before + t, list = head * query_blocks + own / keys.block - kv_before / keys.block;
  for (const std::int64_t block : listed_blocks(keys, list))
    for (std::int64_t i = block * keys.block; i < std::min((block + 1) * keys.block, own + 1); ++i) seen.push_back(i);
  return seen;
}

inline Shape sparse_shape(std::int64_t tokens, std::int64_t before, std::int64_t q_heads, std::int64_t kv_heads, std::int64_t head_dim,
                          std::int64_t percent) {
  return {{"new", tokens}, {"before", before}, {"q_heads", q_heads}, {"kv_heads", kv_heads}, {"head_dim", head_dim}, {"percent", percent}};
}
inline Axes sparse_axes() {
  return {{"new", "m"}, {"before", "n"}, {"q_heads", "q"}, {"kv_heads", "kv"}, {"head_dim", "d"}, {"percent", "s"}};
}

}  // namespace kvlab
