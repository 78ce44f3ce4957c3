#pragma once

#include "kernels/rows/row_op.h"

namespace kvlab {

// Price of the entries that a search visited: keys of a graph (AnnSearch) or of buckets (LshSample). Nothing runs: their number is known
// after the search.
struct SearchVisits {
  enum class Kind : std::uint8_t { kGraph, kBuckets };
  std::int32_t num_rows = 0;
  const std::int32_t* visits = nullptr;  // [num_rows]
  Kind kind = Kind::kGraph;
  std::int64_t entry_bytes = 0, entry_flops = 0;

  [[nodiscard]] OpCall cost() const {
    std::int64_t n = 0;
    for (std::int32_t r = 0; r < num_rows; ++r) n += visits[r];
    return {.op = kind == Kind::kGraph ? "ann_visits" : "lsh_buckets",
            .rows = num_rows,
            .tokens = n,
            .bytes = n * entry_bytes,
            .flops = n * entry_flops};
  }
  [[nodiscard]] static std::int64_t rows() { return 0; }
  static void shapes(auto&& /*visit*/) {}
  [[nodiscard]] static KVLAB_BOTH std::int64_t count(std::int64_t /*row*/) { return 0; }
  KVLAB_BODY void operator()(std::int64_t /*row*/, std::int64_t /*i*/) const {}
};
KVLAB_EACH_OP(SearchVisits)

}  // namespace kvlab
