#pragma once

#include "kernels/rows/row_op.h"

namespace kvlab {

// The first row of each pool becomes its largest, entry by entry. Rows have equal length.
struct LargestEntries {
  std::int32_t num_pools = 0, members = 1;
  const std::int64_t* first = nullptr;  // [num_pools * members + 1]
  float* const* data = nullptr;         // [num_pools * members]

  [[nodiscard]] OpCall cost() const {
    const std::int64_t n = first[num_pools * members];
    return {.op = "largest_entries",
            .rows = num_pools * members,
            .tokens = n,
            .outputs = n / members,
            .bytes = 4 * n + 4 * n / members,
            .flops = n};
  }
  [[nodiscard]] std::int64_t rows() const { return num_pools; }
  void shapes(auto&& visit) { visit(first, std::int64_t{num_pools} * members + 1), visit(data, std::int64_t{num_pools} * members); }

  [[nodiscard]] KVLAB_BOTH std::int64_t count(std::int64_t pool) const { return first[pool * members + 1] - first[pool * members]; }
  KVLAB_BODY void operator()(std::int64_t pool, std::int64_t i) const {
    float largest = data[pool * members][i];
    for (std::int64_t r = pool * members + 1; r < (pool + 1) * members; ++r) largest = largest < data[r][i] ? data[r][i] : largest;
    data[pool * members][i] = largest;
  }
};
KVLAB_EACH_OP(LargestEntries)

}  // namespace kvlab
