#include "kernels/storage/stored/rows_view.h"

#include <algorithm>
#include <utility>

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

RowsView::RowsView(const KvRows& all, std::int32_t first_row, std::int32_t rows)
    : RowsView(all, first_row, {all.len + first_row, static_cast<std::size_t>(rows)}) {}

RowsView::RowsView(const KvRows& all, std::int32_t first_row, std::span<const std::int32_t> len) : first_(1, 0), rows_(all) {
  for (const std::int32_t n : len) first_.push_back(first_.back() + n);
  rows_.num_rows = rows_.kv_heads = static_cast<std::int32_t>(len.size());
  rows_.len = len.data(), rows_.first = first_.data(), rows_.page_begin = all.page_begin + first_row;
}

Listing::Listing(std::span<const RowList> lists, const TensorMemory& memory) : first_(1, 0) {
  for (const RowList& list : lists) {
    for (const TokenRun& run : list.runs)
      for (std::int32_t i = 0; i < run.count; ++i) host_index_.push_back(run.begin + i);
    first_.push_back(first_.back() + list.entries);
    host_index_.resize(static_cast<std::size_t>(first_.back()), -1);
  }
  settle_in(memory);
}

Listing::Listing(std::vector<std::int64_t> first, std::vector<std::int32_t> index, const TensorMemory& memory)
    : first_(std::move(first)), host_index_(std::move(index)) {
  settle_in(memory);
}

void Listing::settle_in(const TensorMemory& memory) {
  index_ = host_index_.data();
  if (memory.on_host()) return;
  frame_.emplace(*memory.cuda());
  index_ = memory.cuda()->upload(host_index_.data(), static_cast<std::int64_t>(host_index_.size()));
}

}  // namespace kvlab
