#pragma once

#include <algorithm>
#include <random>
#include <vector>

#include "kernels/attention/sparse_prefill/sparse_prefill.h"

namespace kvlab {

// Lists of keys at random, and which keys they hold.
struct DrawnSparseKeys {
  struct Shape {
    std::int64_t new_tokens, kv_before, q_heads;
    std::int32_t block;
  };
  struct Chances {
    double block = 0.5, own = 1.0, column = 0.0;  // of a key block before the queries' own, of that one, of a position outside
    double later = 0.0;                           // of a block after the queries' own, which they must not see
    bool shared = false;                          // all heads have the lists of the first
  };

  DrawnSparseKeys(const Shape& s, const Chances& c, std::uint64_t seed) : block(s.block), kv_before(s.kv_before) {
    query_blocks = kvlab::query_blocks(s.new_tokens, s.kv_before, s.block);
    for (std::int64_t h = 0; h < s.q_heads; ++h)
      for (std::int64_t b = 0; b < query_blocks; ++b)
        draw(s, c, s.kv_before / s.block + b, seed * 1'000'003 + static_cast<std::uint64_t>((c.shared ? 0 : h * query_blocks) + b));
  }
  [[nodiscard]] SparseKeys keys() const { return {block, block_first.data(), blocks.data(), column_first.data(), columns.data()}; }
  [[nodiscard]] std::int64_t list_of(std::int64_t head, std::int64_t token) const {
    return head * query_blocks + (kv_before + token) / block - kv_before / block;
  }
  // Adds the lists of another prompt after these.
  void append(const DrawnSparseKeys& more) {
    for (std::size_t i = 1; i < more.block_first.size(); ++i) {
      block_first.push_back(static_cast<std::int64_t>(blocks.size()) + more.block_first[i]);
      column_first.push_back(static_cast<std::int64_t>(columns.size()) + more.column_first[i]);
    }
    blocks.insert(blocks.end(), more.blocks.begin(), more.blocks.end());
    columns.insert(columns.end(), more.columns.begin(), more.columns.end());
  }

  std::int32_t block;
  std::int64_t kv_before, query_blocks;
  std::vector<std::int64_t> block_first{0}, column_first{0};
  std::vector<std::int32_t> blocks, columns;

 private:
  void draw(const Shape& s, const Chances& c, std::int64_t own, std::uint64_t seed) {
    std::mt19937_64 random(seed);
    std::uniform_real_distribution<double> uniform(0.0, 1.0);
    const std::int64_t total = s.kv_before + s.new_tokens;
    for (std::int64_t b = 0; b * block < total; ++b) {
      if (uniform(random) < (b < own ? c.block : b == own ? c.own : c.later)) {
        blocks.push_back(static_cast<std::int32_t>(b));
        continue;
      }
      for (std::int64_t i = b * block; i < std::min<std::int64_t>(total, (b + 1) * block); ++i)
        if (uniform(random) < c.column) columns.push_back(static_cast<std::int32_t>(i));
    }
    block_first.push_back(static_cast<std::int64_t>(blocks.size()));
    column_first.push_back(static_cast<std::int64_t>(columns.size()));
  }
};

// Key `position` is listed and not hidden from the query at `own`.
inline bool sees(const SparseKeys& keys, std::int64_t list, std::int64_t position, std::int64_t own, std::int64_t window) {
  if (position > own || (window > 0 && position <= own - window)) return false;
  const auto blocks = listed_blocks(keys, list), columns = listed_columns(keys, list);
  return std::find(blocks.begin(), blocks.end(), position / keys.block) != blocks.end() ||
         std::find(columns.begin(), columns.end(), position) != columns.end();
}

}  // namespace kvlab
