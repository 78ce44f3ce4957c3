#pragma once

#include <cstdint>

#include "kernels/element.h"

namespace kvlab {

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

}  // namespace kvlab
