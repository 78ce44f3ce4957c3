#pragma once

#include "kernels/rows/row_op.h"
#include "kernels/rows/search.h"

namespace kvlab {

// Entries of each ascending list that are >= `from`.
struct CountFrom {
  std::int32_t num_lists = 0;
  const std::int64_t* first = nullptr;  // [num_lists + 1]
  const std::int32_t* index = nullptr;
  std::int32_t from = 0;
  std::int32_t* counts = nullptr;  // [num_lists] out, in CPU memory; untouched on shapes

  // A bisection of each list.
  [[nodiscard]] OpCall cost() const {
    return {.op = "count_from", .rows = num_lists, .tokens = first[num_lists], .outputs = num_lists, .bytes = 8LL * num_lists};
  }
  [[nodiscard]] std::int64_t rows() const { return 1; }
  void shapes(auto&& visit) { visit(first, num_lists + 1); }
  void results(auto&& visit) { visit(counts, num_lists); }

  [[nodiscard]] KVLAB_BOTH std::int64_t count(std::int64_t /*row*/) const { return num_lists; }
  KVLAB_BODY void operator()(std::int64_t /*row*/, std::int64_t list) const {
    const auto n = static_cast<std::int32_t>(first[list + 1] - first[list]);
    counts[list] = n - count_below(index + first[list], n, from);
  }
};
KVLAB_EACH_OP(CountFrom)

}  // namespace kvlab
