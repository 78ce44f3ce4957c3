#pragma once

#include <cstdint>
#include <vector>

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

// Entry i of row r is token index[first[r] + i], ascending. Lengths are bounds known without data; unused entries at the end: -1.
struct ListedTokens {
  KvRows kv;
  const std::int64_t* first = nullptr;  // [kv.num_rows + 1]
  const std::int32_t* index = nullptr;  // [total()]
  bool values = false;                  // V, not K

  [[nodiscard]] std::int64_t total() const { return kv.num_rows == 0 ? 0 : first[kv.num_rows]; }
  [[nodiscard]] KVLAB_BOTH std::int32_t entries(std::int64_t row) const { return static_cast<std::int32_t>(first[row + 1] - first[row]); }
  [[nodiscard]] std::int32_t most_entries() const {
    std::int32_t most = 0;
    for (std::int32_t r = 0; r < kv.num_rows; ++r) most = entries(r) > most ? entries(r) : most;
    return most;
  }
  // Used entries. Needs data.
  [[nodiscard]] std::int32_t count(std::int32_t row) const {
    std::int32_t n = entries(row);
    while (n > 0 && index[first[row] + n - 1] < 0) --n;
    return n;
  }
  // [head_dim] of entry i.
  [[nodiscard]] float* at(std::int32_t row, std::int32_t i) const {
    const std::int32_t token = index[first[row] + i];
    return values ? kv.value(row, token) : kv.key(row, token);
  }
  [[nodiscard]] ListedTokens of_values() const {
    ListedTokens v = *this;
    v.values = true;
    return v;
  }
  // In the model's precision.
  [[nodiscard]] std::int64_t dense_bytes() const { return total() * kv.head_dim * kv.kv_bytes; }
  [[nodiscard]] std::int64_t list_bytes() const { return 4 * total(); }
};

// Both lists ascend.
struct PartedRows {
  KvRows kv;
  const std::int64_t* kept_first = nullptr;  // [num_rows + 1]
  const std::int32_t* kept = nullptr;
  const std::int64_t* dropped_first = nullptr;  // [num_rows + 1]
  const std::int32_t* dropped = nullptr;

  [[nodiscard]] KVLAB_BOTH std::int32_t num_kept(std::int32_t row) const {
    return static_cast<std::int32_t>(kept_first[row + 1] - kept_first[row]);
  }
  [[nodiscard]] KVLAB_BOTH std::int32_t num_dropped(std::int32_t row) const {
    return static_cast<std::int32_t>(dropped_first[row + 1] - dropped_first[row]);
  }
  [[nodiscard]] std::int64_t total_kept() const { return kv.num_rows == 0 ? 0 : kept_first[kv.num_rows]; }
  [[nodiscard]] std::int64_t total_dropped() const { return kv.num_rows == 0 ? 0 : dropped_first[kv.num_rows]; }
  // Bound of kept tokens that receive a dropped one.
  [[nodiscard]] std::int64_t most_targets() const {
    std::int64_t n = 0;
    for (std::int32_t r = 0; r < kv.num_rows; ++r) n += num_kept(r) < num_dropped(r) ? num_kept(r) : num_dropped(r);
    return n;
  }
};

// Query heads as KV heads, over the same pages.
struct HeadsApart {
  explicit HeadsApart(const KvRows& rows) : kv(rows) {
    first.push_back(0);
    for (std::int32_t r = 0; r < rows.num_rows; ++r)
      for (std::int32_t g = 0; g < rows.group; ++g) {
        len.push_back(rows.len[r]), page_begin.push_back(rows.page_begin[r]);
        first.push_back(first.back() + rows.len[r]);
      }
    kv.num_rows *= rows.group, kv.kv_heads *= rows.group, kv.group = 1;
    kv.len = len.data(), kv.first = first.data(), kv.page_begin = page_begin.data();
  }
  std::vector<std::int32_t> len, page_begin;
  std::vector<std::int64_t> first;
  KvRows kv;
};

// Lists of units (pages, chunks, clusters or tokens) in one array from first[r] on, or in separate arrays. They may be shorter than their
// space.
struct UnitLists {
  const std::int64_t* first = nullptr;        // [num_rows + 1] offset of each row's list in `unit`
  const std::int32_t* unit = nullptr;         // [first[num_rows]]
  const std::int32_t* const* rows = nullptr;  // [num_rows] used if `first` is null
  const std::int32_t* count = nullptr;        // [num_rows] null: the whole space

  [[nodiscard]] KVLAB_BOTH std::int64_t size(std::int64_t r) const { return count != nullptr ? count[r] : first[r + 1] - first[r]; }
  [[nodiscard]] KVLAB_BOTH const std::int32_t* row(std::int64_t r) const { return first != nullptr ? unit + first[r] : rows[r]; }
  [[nodiscard]] std::int64_t total(std::int64_t num_rows) const {
    std::int64_t n = 0;
    for (std::int64_t r = 0; r < num_rows; ++r) n += size(r);
    return n;
  }
};

// In CPU memory, for shapes(visit) of row operations.
void visit_lists(UnitLists& lists, std::int64_t num_rows, auto&& visit) {
  visit(lists.first, num_rows + 1), visit(lists.rows, num_rows), visit(lists.count, num_rows);
}

// Reads at eight places in turn: one prefetch stream leaves most bandwidth unused. The first n % 8 have one more.
constexpr std::int64_t kStreams = 8;

// The order depends only on n.
template <class F>
void for_each_in_streams(std::int64_t n, F&& f) {
  const std::int64_t each = n / kStreams, longer = n % kStreams;
  for (std::int64_t at = 0; at < each + (longer > 0 ? 1 : 0); ++at)
    for (std::int64_t s = 0; s < (at < each ? kStreams : longer); ++s) f(s * each + (s < longer ? s : longer) + at);
}

}  // namespace kvlab
