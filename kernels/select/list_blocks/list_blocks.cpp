#include "kernels/select/list_blocks/list_blocks.h"

#include <algorithm>

#include "base/parallel.h"

namespace kvlab {

namespace {

// Calls for the blocks of a list in ascending order, its own one last.
template <class F>
void for_each_block(const PromptBlocks& p, const std::int32_t* marks, std::int64_t list, F&& f) {
  const std::int64_t own = p.first_block() + list % p.num_query_blocks();
  const std::int32_t* const words = marks + list * p.mark_words();
  for (std::int64_t j = 0; j < own; ++j)
    if (is_marked(words, j)) f(j);
  f(own);
}

template <class F>
void for_each_column(const PromptBlocks& p, const std::int32_t* marks, const std::int32_t* columns, std::int64_t list, F&& f) {
  const std::int64_t own = p.first_block() + list % p.num_query_blocks();
  const std::int32_t* const words = marks + list * p.mark_words();
  const std::int32_t* const of_head = columns + list / p.num_query_blocks() * p.column_words();
  for (std::int64_t j = 0; j < own; ++j) {
    if (is_marked(words, j)) continue;
    for (std::int64_t c = j * p.block; c < (j + 1) * p.block; ++c)
      if (is_marked(of_head, c)) f(c);
  }
}

std::int64_t mark_bytes(const PromptBlocks& p, bool has_columns) {
  return 4 * (p.num_lists() * p.mark_words() + (has_columns ? p.q_heads * p.column_words() : 0));
}

}  // namespace

OpCall call(const CountMarked& a) {
  const std::int64_t lists = a.prompt.num_lists(), counts = a.has_columns ? 2 : 1;
  return {.op = "count_marked",
          .rows = a.prompt.q_heads,
          .tokens = a.prompt.end(),
          .outputs = counts * lists,
          .bytes = mark_bytes(a.prompt, a.has_columns) + 4 * counts * lists};
}

void run_cpu(const CountMarked& a) {
  for_each_in_parallel(a.prompt.num_lists(), [&](std::int64_t list) {
    std::int32_t blocks = 0, columns = 0;
    for_each_block(a.prompt, a.marks, list, [&](std::int64_t) { ++blocks; });
    a.num_blocks[list] = blocks;
    if (!a.has_columns) return;
    for_each_column(a.prompt, a.marks, a.column_marks, list, [&](std::int64_t) { ++columns; });
    a.num_columns[list] = columns;
  });
}

OpCall call(const ListMarked& a) {
  const std::int64_t lists = a.prompt.num_lists();
  const bool has_columns = a.column_first != nullptr;
  const std::int64_t listed = a.block_first[lists] + (has_columns ? a.column_first[lists] : 0);
  return {.op = "list_marked",
          .rows = a.prompt.q_heads,
          .tokens = a.prompt.end(),
          .outputs = listed,
          .bytes = mark_bytes(a.prompt, has_columns) + 4 * listed};
}

void run_cpu(const ListMarked& a) {
  for_each_in_parallel(a.prompt.num_lists(), [&](std::int64_t list) {
    std::int32_t* to = a.blocks + a.block_first[list];
    for_each_block(a.prompt, a.marks, list, [&](std::int64_t j) { *to++ = static_cast<std::int32_t>(j); });
    if (a.column_first == nullptr) return;
    to = a.columns + a.column_first[list];
    for_each_column(a.prompt, a.marks, a.column_marks, list, [&](std::int64_t c) { *to++ = static_cast<std::int32_t>(c); });
  });
}

}  // namespace kvlab
