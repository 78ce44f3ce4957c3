#pragma once

#include "kernels/select/prompt_blocks.h"

namespace kvlab {

// Counts what CountMarked finds and lists it: blocks of each list, the query block's own included whether it is marked or not, and columns
// that are marked for the list's head, before the end of the query block, and in none of the list's blocks.
struct CountMarked {
  PromptBlocks prompt;                         // q and k are not read
  const std::int32_t* marks = nullptr;         // [num_lists, mark_words]
  const std::int32_t* column_marks = nullptr;  // [q_heads, column_words]; null: no columns
  bool has_columns = false;                    // also known on shapes
  std::int32_t* num_blocks = nullptr;          // [num_lists] out
  std::int32_t* num_columns = nullptr;         // [num_lists] out, if has_columns
};
// Marks are read, a count is written for each list.
OpCall call(const CountMarked&);
void run_cpu(const CountMarked&);

struct ListMarked {
  PromptBlocks prompt;
  const std::int32_t* marks = nullptr;
  const std::int32_t* column_marks = nullptr;
  const std::int64_t* block_first = nullptr;   // [num_lists + 1] in CPU memory
  const std::int64_t* column_first = nullptr;  // [num_lists + 1] or null: no columns
  std::int32_t* blocks = nullptr;              // out, ascending in each list
  std::int32_t* columns = nullptr;             // out, ascending in each list
};
// Marks are read, lists are written.
OpCall call(const ListMarked&);
void run_cpu(const ListMarked&);

}  // namespace kvlab
