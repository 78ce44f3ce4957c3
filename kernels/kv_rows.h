#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/element.h"

namespace kvlab {

// A layer's cached K and V of a ragged batch. Row r = s * kv_heads + h: KV head h of sequence s. Token i: slot `i % page_tokens` of page
// `page[page_begin[r] + i / page_tokens]`. Valid until the owner appends or changes a length. On shapes data pointers are null, lengths are
// not.
struct KvRows {
  std::int32_t num_rows = 0;
  std::int32_t kv_heads = 1;
  std::int32_t group = 1;  // query heads per KV head
  std::int32_t head_dim = 0;
  std::int32_t kv_bytes = 2;  // per stored element, in formulas

  const std::int32_t* len = nullptr;         // [num_rows]
  const std::int64_t* first = nullptr;       // [num_rows + 1] prefix sums of len
  const std::int32_t* page_begin = nullptr;  // [num_rows]
  const std::int32_t* page = nullptr;
  std::int32_t page_tokens = 0;
  std::int64_t pool_tokens = 0;

  float* k = nullptr;                // [pool_tokens, head_dim]
  float* v = nullptr;                // as k
  std::int32_t* position = nullptr;  // [pool_tokens]
  std::uint32_t* words = nullptr;    // [num_words, pool_tokens] policies' statistics
  std::int32_t num_words = 0;
  // CPU: kF32. On a GPU lengths and pages are in CPU memory.
  ElementType type = ElementType::kF32;

  [[nodiscard]] KVLAB_BOTH std::int64_t total() const { return num_rows == 0 ? 0 : first[num_rows]; }
  [[nodiscard]] KVLAB_BOTH std::int32_t sequence(std::int32_t row) const { return row / kv_heads; }
  [[nodiscard]] KVLAB_BOTH std::int32_t num_sequences() const { return num_rows / kv_heads; }
  [[nodiscard]] KVLAB_BOTH std::int64_t slot(std::int32_t row, std::int32_t i) const {
    return static_cast<std::int64_t>(page[page_begin[row] + i / page_tokens]) * page_tokens + i % page_tokens;
  }
  [[nodiscard]] KVLAB_BOTH float* key(std::int32_t row, std::int32_t i) const { return k + slot(row, i) * head_dim; }
  [[nodiscard]] KVLAB_BOTH float* value(std::int32_t row, std::int32_t i) const { return v + slot(row, i) * head_dim; }
  [[nodiscard]] KVLAB_BOTH std::uint32_t& word(std::int32_t channel, std::int32_t row, std::int32_t i) const {
    return words[channel * pool_tokens + slot(row, i)];
  }
};

// Matrices [count, head_dim] in consecutive slots.
struct KvRun {
  std::int32_t begin = 0, count = 0;
  std::int64_t slot = 0;  // of the first
};

inline KvRun run_at(const KvRows& kv, std::int32_t row, std::int32_t begin) {
  KvRun run{begin, 0, kv.slot(row, begin)};
  std::int32_t next = begin;
  while (next < kv.len[row] && kv.slot(row, next) == run.slot + (next - begin)) {
    const std::int32_t rest_of_page = kv.page_tokens - next % kv.page_tokens;
    next = next + rest_of_page < kv.len[row] ? next + rest_of_page : kv.len[row];
  }
  run.count = next - begin;
  return run;
}

template <class F>
void for_each_run(const KvRows& kv, std::int32_t row, F&& f) {
  for (std::int32_t at = 0; at < kv.len[row];) {
    const KvRun run = run_at(kv, row, at);
    f(run);
    at += run.count;
  }
}

// At consecutive positions, [count, q_heads, head_dim], q_heads = kv_heads * group.
struct Queries {
  const float* data = nullptr;
  std::int32_t count = 0;
  std::int32_t first_position = 0;

  // [group, head_dim] at the last position.
  [[nodiscard]] KVLAB_BOTH const float* last(std::int64_t head, std::int32_t kv_heads, std::int32_t group, std::int32_t head_dim) const {
    return data + ((count - std::int64_t{1}) * kv_heads + head) * group * head_dim;
  }
};

// Pass over prompt tokens [ctx_begin, ctx_end), then the chunk.
struct PassQueries {
  Queries queries;
  const float* k = nullptr;  // [queries.count, kv_heads, head_dim] the pass's own
  std::int32_t ctx_begin = 0, ctx_end = 0;
  const float* hidden = nullptr;    // [queries.count, hidden_dim] the layer's input, or null
  const float* gradient = nullptr;  // [queries.count] norms of gradients after the layer's attention, or null
};

// Visible pairs; queries are the last tokens.
inline std::int64_t causal_pairs(std::int64_t queries, std::int64_t tokens) {
  const std::int64_t w = queries < tokens ? queries : tokens;
  return queries * tokens - w * (w - 1) / 2;
}

}  // namespace kvlab
