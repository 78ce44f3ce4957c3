#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/kv_rows.h"

namespace kvlab {

struct TokenRun {
  std::int32_t begin = 0, count = 0;
};

// Tokens, ascending, then spare entries.
struct RowList {
  std::vector<TokenRun> runs;
  std::int32_t tokens = 0, entries = 0;

  [[nodiscard]] bool is_full() const { return tokens == entries; }
  void append(TokenRun run);
  void append(const RowList& later);
};

// Rows [first_row, first_row + rows), from indices in CPU memory. Lists without tokens have no entries.
std::vector<RowList> row_lists(const ListedTokens& listed, std::int32_t first_row, std::int32_t rows);

// Tokens [0, len) in none of `lists`.
RowList tokens_outside(std::span<const RowList* const> lists, std::int32_t len);

}  // namespace kvlab
