#pragma once

#include "kernels/attention/sparse_prefill/sparse_prefill.h"
#include "kernels/rows/row_op.h"

namespace kvlab {

// Counts or lists marked blocks with the query block's own, and marked columns before the query block outside of these.
struct ListMarked {
  PromptBlocks prompt;                         // q and k are not read
  const std::int32_t* marks = nullptr;         // [num_lists, mark_words]
  const std::int32_t* column_marks = nullptr;  // [q_heads, column_words]
  bool has_columns = false;
  // Counts (unless null, in CPU memory [num_lists]), or ascending lists.
  std::int32_t *num_blocks = nullptr, *num_columns = nullptr;
  const std::int64_t *block_first = nullptr, *column_first = nullptr;  // [num_lists + 1] in CPU memory
  std::int32_t *blocks = nullptr, *columns = nullptr;

  static constexpr bool kInParallel = true;

  [[nodiscard]] OpCall cost() const {
    const std::int64_t lists = prompt.num_lists();
    const std::int64_t outputs =
        num_blocks != nullptr ? lists * (has_columns ? 2 : 1) : block_first[lists] + (has_columns ? column_first[lists] : 0);
    return {.op = num_blocks != nullptr ? "count_marked" : "list_marked",
            .rows = prompt.q_heads,
            .tokens = prompt.end(),
            .outputs = outputs,
            .bytes = 4 * (lists * prompt.mark_words() + (has_columns ? prompt.q_heads * prompt.column_words() : 0) + outputs)};
  }
  [[nodiscard]] std::int64_t rows() const { return prompt.num_lists(); }
  void shapes(auto&& visit) { visit(block_first, rows() + 1), visit(column_first, rows() + 1); }
  void results(auto&& visit) { visit(num_blocks, rows()), visit(num_columns, rows()); }

  template <class Team>
  KVLAB_BODY void operator()(const Team& team, std::int64_t list) const {
    const std::int64_t own = prompt.first_block() + list % prompt.num_query_blocks();
    const std::int32_t* const words = marks + list * prompt.mark_words();
    const auto is_listed = [&](std::int64_t j) { return is_marked(words, j); };
    const auto into = [](std::int32_t* to) {
      return [to](std::int64_t at, std::int64_t i) {
        if (to != nullptr) to[at] = static_cast<std::int32_t>(i);
      };
    };
    std::int32_t* const to = num_blocks != nullptr ? nullptr : blocks + block_first[list];
    const std::int64_t earlier = team.pack(own, is_listed, into(to));
    team.once([&] { (to == nullptr ? num_blocks[list] : to[earlier]) = static_cast<std::int32_t>(to == nullptr ? earlier + 1 : own); });
    if (!has_columns) return;
    const std::int32_t* const of_head = column_marks + list / prompt.num_query_blocks() * prompt.column_words();
    const auto is_column = [&](std::int64_t c) { return is_marked(of_head, c) && !is_marked(words, c / prompt.block); };
    const std::int64_t count =
        team.pack(own * prompt.block, is_column, into(num_columns != nullptr ? nullptr : columns + column_first[list]));
    if (num_columns != nullptr) team.once([&] { num_columns[list] = static_cast<std::int32_t>(count); });
  }
};
KVLAB_ROW_OP(ListMarked)

}  // namespace kvlab
