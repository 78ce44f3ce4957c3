#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/element.h"

namespace kvlab {

// One layer's cached keys and values for a ragged batch. Row r = sequence s x KV head h, r = s * kv_heads + h: every KV head has its own
// length. Token i of row r is in page `page[page_begin[r] + i / page_tokens]`, slot `i % page_tokens`. A view: raw pointers into the
// owner's memory, valid until the owner appends to the batch or changes a length. When only shapes are computed (the simulator) data
// pointers are null, lengths are not.
struct KvRows {
  std::int32_t num_rows = 0;
  std::int32_t kv_heads = 1;  // rows per sequence
  std::int32_t group = 1;     // query heads per KV head
  std::int32_t head_dim = 0;
  std::int32_t kv_bytes = 2;  // of one stored element, for the byte formulas; the arrays here hold decoded float32

  const std::int32_t* len = nullptr;         // [num_rows] tokens held
  const std::int64_t* first = nullptr;       // [num_rows + 1] prefix sums of len: where a row starts in ragged arrays
  const std::int32_t* page_begin = nullptr;  // [num_rows]
  const std::int32_t* page = nullptr;        // physical pages
  std::int32_t page_tokens = 0;
  std::int64_t pool_tokens = 0;  // num_pages * page_tokens

  float* k = nullptr;                // [pool_tokens, head_dim]
  float* v = nullptr;                // [pool_tokens, head_dim]
  std::int32_t* position = nullptr;  // [pool_tokens] position in the sequence
  std::uint32_t* words = nullptr;    // [num_words, pool_tokens] statistics that policies keep per token; they move with it
  std::int32_t num_words = 0;
  // Element type of k and v. On a GPU k, v, position and words are in device memory and k and v point to elements of this type; lengths and
  // pages stay in CPU memory. On the CPU it is kF32.
  ElementType type = ElementType::kF32;

  [[nodiscard]] std::int64_t total() const { return num_rows == 0 ? 0 : first[num_rows]; }
  [[nodiscard]] std::int32_t sequence(std::int32_t row) const { return row / kv_heads; }
  [[nodiscard]] std::int32_t num_sequences() const { return num_rows / kv_heads; }
  // Place of token i of a row in the pool.
  [[nodiscard]] std::int64_t slot(std::int32_t row, std::int32_t i) const {
    return static_cast<std::int64_t>(page[page_begin[row] + i / page_tokens]) * page_tokens + i % page_tokens;
  }
  [[nodiscard]] float* key(std::int32_t row, std::int32_t i) const { return k + slot(row, i) * head_dim; }
  [[nodiscard]] float* value(std::int32_t row, std::int32_t i) const { return v + slot(row, i) * head_dim; }
  [[nodiscard]] std::uint32_t& word(std::int32_t channel, std::int32_t row, std::int32_t i) const {
    return words[channel * pool_tokens + slot(row, i)];
  }
};

// Consecutive tokens of a row in consecutive slots, so that their K and V are plain matrices [count, head_dim].
struct KvRun {
  std::int32_t begin = 0, count = 0;  // tokens of the row
  std::int64_t slot = 0;              // of the first
};

// The longest run that starts at token `begin` of the row.
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

// Calls f(run) for the runs that make up a row.
template <class F>
void for_each_run(const KvRows& kv, std::int32_t row, F&& f) {
  for (std::int32_t at = 0; at < kv.len[row];) {
    const KvRun run = run_at(kv, row, at);
    f(run);
    at += run.count;
  }
}

// Queries of one sequence at consecutive positions, [count, q_heads, head_dim], q_heads = kv_heads * group.
struct Queries {
  const float* data = nullptr;
  std::int32_t count = 0;
  std::int32_t first_position = 0;
};

// Tokens of an extra pass and the tokens that they saw: queries over the prompt's tokens [ctx_begin, ctx_end), then over the chunk itself.
struct PassQueries {
  Queries queries;
  const float* k = nullptr;  // [queries.count, kv_heads, head_dim] the pass's own keys
  std::int32_t ctx_begin = 0, ctx_end = 0;
  const float* hidden = nullptr;    // [queries.count, hidden_dim] the attention layer's input, if requested
  const float* gradient = nullptr;  // [queries.count] norms of gradients after the layer's attention, of passes that have them
};

// Pairs of a query and a token that it sees; the queries are the last of the tokens.
inline std::int64_t causal_pairs(std::int64_t queries, std::int64_t tokens) {
  const std::int64_t w = queries < tokens ? queries : tokens;
  return queries * tokens - w * (w - 1) / 2;
}

}  // namespace kvlab
