#pragma once

#include "kernels/rows/row_op.h"

namespace kvlab {

// Positions relative to each row's first token: position[slot of token i] = i.
struct LocalPositions {
  KvRows kv;
  std::int32_t* position = nullptr;  // [kv.pool_tokens]; slots of no row are not written

  [[nodiscard]] OpCall cost() const {
    return {.op = "local_positions", .rows = kv.num_rows, .tokens = kv.total(), .outputs = kv.total(), .bytes = 4 * kv.total()};
  }
  [[nodiscard]] std::int64_t rows() const { return kv.num_rows; }
  void shapes(auto&& visit) { visit(kv); }

  [[nodiscard]] KVLAB_BOTH std::int64_t count(std::int64_t row) const { return kv.len[row]; }
  KVLAB_BODY void operator()(std::int64_t row, std::int64_t i) const {
    position[kv.slot(static_cast<std::int32_t>(row), static_cast<std::int32_t>(i))] = static_cast<std::int32_t>(i);
  }
};
KVLAB_EACH_OP(LocalPositions)

}  // namespace kvlab
