#include "kernels/storage/stored/row_list.h"

#include <algorithm>

namespace kvlab {

void RowList::append(TokenRun run) {
  if (run.count == 0) return;
  if (!runs.empty() && runs.back().begin + runs.back().count == run.begin)
    runs.back().count += run.count;
  else
    runs.push_back(run);
  tokens += run.count, entries += run.count;
}

void RowList::append(const RowList& later) {
  for (const TokenRun& run : later.runs) append(run);
  entries += later.entries - later.tokens;
}

std::vector<RowList> row_lists(const ListedTokens& listed, std::int32_t first_row, std::int32_t rows) {
  std::vector<RowList> lists(static_cast<std::size_t>(rows));
  for (std::int32_t h = 0; h < rows; ++h) {
    RowList& list = lists[static_cast<std::size_t>(h)];
    const std::int32_t row = first_row + h, tokens = listed.count(row);
    for (std::int32_t i = 0; i < tokens; ++i) list.append({listed.index[listed.first[row] + i], 1});
    if (tokens > 0) list.entries = listed.entries(row);
  }
  return lists;
}

RowList tokens_outside(std::span<const RowList* const> lists, std::int32_t len) {
  std::vector<bool> is_listed(static_cast<std::size_t>(len), false);
  for (const RowList* const list : lists)
    for (const TokenRun& run : list->runs) std::fill_n(is_listed.begin() + run.begin, run.count, true);
  RowList rest;
  for (std::int32_t i = 0; i < len; ++i)
    if (!is_listed[static_cast<std::size_t>(i)]) rest.append({i, 1});
  return rest;
}

}  // namespace kvlab
