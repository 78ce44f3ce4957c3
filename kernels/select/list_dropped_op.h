#pragma once

#include "kernels/rows/elements.h"
#include "kernels/rows/row_op.h"
#include "kernels/rows/search.h"

namespace kvlab {

// Tokens that are not kept, ascending.
struct ListDropped {
  PartedRows parts;                 // `dropped` is not read
  std::int32_t* dropped = nullptr;  // [total_dropped()] out

  [[nodiscard]] OpCall cost() const {
    const std::int64_t n = parts.kv.total();
    return {.op = "list_dropped", .rows = rows(), .tokens = n, .outputs = parts.total_dropped(), .bytes = 4 * n, .flops = n};
  }
  [[nodiscard]] std::int64_t rows() const { return parts.kv.num_rows; }
  void shapes(auto&& visit) { visit_parts(parts, visit); }

  [[nodiscard]] KVLAB_BOTH std::int64_t count(std::int64_t row) const { return parts.num_dropped(static_cast<std::int32_t>(row)); }
  // kept[k] - k dropped tokens come before kept token k.
  KVLAB_BODY void operator()(std::int64_t row, std::int64_t j) const {
    const std::int32_t* const kept = parts.kept + parts.kept_first[row];
    const std::int32_t before =
        count_first(parts.num_kept(static_cast<std::int32_t>(row)), [&](std::int32_t k) { return kept[k] - k <= j; });
    dropped[parts.dropped_first[row] + j] = static_cast<std::int32_t>(j) + before;
  }
};
KVLAB_EACH_OP(ListDropped)

}  // namespace kvlab
