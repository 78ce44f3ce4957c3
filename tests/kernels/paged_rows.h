#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/random.h"
#include "kernels/kv_rows.h"
#include "policies/kv/cache/kv_store.h"

namespace kvlab {

// Rows of these lengths in pages that are in falling order in the pool; keys, values, positions and words are 0.
struct PagedRows {
  PagedRows(std::vector<std::int32_t> lengths, std::int32_t head_dim, std::int32_t page_tokens, std::int32_t num_words = 0)
      : len(std::move(lengths)) {
    for (const std::int32_t n : len) {
      page_begin.push_back(static_cast<std::int32_t>(page.size()));
      first.push_back(first.back() + n);
      for (std::int32_t p = 0; p * page_tokens < std::max(n, 1); ++p) page.push_back(static_cast<std::int32_t>(page.size()));
    }
    std::reverse(page.begin(), page.end());
    position.resize(page.size() * static_cast<std::size_t>(page_tokens));
    k.resize(position.size() * static_cast<std::size_t>(head_dim)), v = k;
    words.resize(position.size() * static_cast<std::size_t>(num_words));
    kv.num_rows = static_cast<std::int32_t>(len.size()), kv.head_dim = head_dim, kv.len = len.data(), kv.first = first.data();
    kv.page_begin = page_begin.data(), kv.page = page.data(), kv.page_tokens = page_tokens;
    kv.pool_tokens = static_cast<std::int64_t>(position.size()), kv.num_words = num_words;
    kv.k = k.data(), kv.v = v.data(), kv.position = position.data(), kv.words = words.data();
  }
  PagedRows(const PagedRows&) = delete;
  PagedRows& operator=(const PagedRows&) = delete;

  std::vector<std::int32_t> len, page_begin, page, position;
  std::vector<std::int64_t> first{0};
  std::vector<float> k, v;
  std::vector<std::uint32_t> words;
  KvRows kv;
};

// One sequence, all tokens of all rows listed.
struct ListedRows {
  // keys and values [tokens, heads, head_dim]
  ListedRows(std::int32_t heads, std::int32_t head_dim, std::vector<float> keys, std::vector<float> values, std::int32_t group = 1)
      : k(std::move(keys)), v(std::move(values)), store({1, group * heads, heads, head_dim, 16}, 1, 1, true) {
    load();
  }
  // Rows of what is in k and v.
  void load() {
    for (std::int32_t r = 0; r < store.num_rows(); ++r) store.shrink(r, 0);
    const KvRows shape = store.rows();
    store.append(0, k.data(), v.data(), static_cast<std::int32_t>(k.size()) / (shape.kv_heads * shape.head_dim), 0);
    const KvRows kv = store.rows();
    first.assign(1, 0);
    index.clear();
    for (std::int32_t r = 0; r < kv.num_rows; ++r) {
      first.push_back(first.back() + kv.len[r]);
      for (std::int32_t i = 0; i < kv.len[r]; ++i) index.push_back(i);
    }
    listed = {kv, first.data(), index.data(), false};
  }
  std::vector<float> k, v;
  KvStore store;
  std::vector<std::int64_t> first;
  std::vector<std::int32_t> index;
  ListedTokens listed;
};

inline float drawn_normal(std::uint64_t seed, std::uint64_t stream, std::uint64_t i) {
  return static_cast<float>(Draw{seed, Purpose::kTest, stream, i}.normal());
}
inline std::vector<float> drawn_normals(std::int64_t n, std::uint64_t seed, std::uint64_t stream, float mean = 0) {
  std::vector<float> x(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = drawn_normal(seed, stream, i) + mean;
  return x;
}

}  // namespace kvlab
