#pragma once

#include "kernels/rows/elements.h"
#include "kernels/rows/row_op.h"

namespace kvlab {

// The nearest kept token, the earlier one of two: target is a place in the row's kept list (-1: none).
struct NearestAnchor {
  PartedRows parts;
  std::int32_t* target = nullptr;  // [total_dropped()] out

  [[nodiscard]] OpCall cost() const {
    const std::int64_t n = parts.kv.total(), dropped = parts.total_dropped();
    return {.op = "nearest_anchor", .rows = rows(), .tokens = n, .outputs = dropped, .bytes = 8 * n + 4 * dropped, .flops = 2 * n};
  }
  [[nodiscard]] std::int64_t rows() const { return parts.kv.num_rows; }
  void shapes(auto&& visit) { visit_parts(parts, visit); }

  [[nodiscard]] KVLAB_BOTH std::int64_t count(std::int64_t row) const { return parts.num_dropped(static_cast<std::int32_t>(row)); }
  KVLAB_BODY void operator()(std::int64_t at, std::int64_t i) const {
    const auto row = static_cast<std::int32_t>(at);
    const KvRows& kv = parts.kv;
    const std::int32_t* const kept = parts.kept + parts.kept_first[row];
    const std::int32_t token = parts.dropped[parts.dropped_first[row] + i], next = token - static_cast<std::int32_t>(i);
    const auto position = [&](std::int32_t t) { return kv.position[kv.slot(row, t)]; };
    const bool is_next =
        next < parts.num_kept(row) && (next == 0 || position(kept[next]) - position(token) < position(token) - position(kept[next - 1]));
    target[parts.dropped_first[row] + i] = is_next ? next : next - 1;
  }
};
KVLAB_EACH_OP(NearestAnchor)

}  // namespace kvlab
