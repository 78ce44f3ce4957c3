#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/kv_rows.h"

namespace kvlab {

// Both lists ascend.
struct PartedRows {
  KvRows kv;
  const std::int64_t* kept_first = nullptr;  // [num_rows + 1]
  const std::int32_t* kept = nullptr;
  const std::int64_t* dropped_first = nullptr;  // [num_rows + 1]
  const std::int32_t* dropped = nullptr;

  [[nodiscard]] KVLAB_BOTH std::int32_t num_kept(std::int32_t row) const {
    return static_cast<std::int32_t>(kept_first[row + 1] - kept_first[row]);
  }
  [[nodiscard]] KVLAB_BOTH std::int32_t num_dropped(std::int32_t row) const {
    return static_cast<std::int32_t>(dropped_first[row + 1] - dropped_first[row]);
  }
  [[nodiscard]] std::int64_t total_kept() const { return kv.num_rows == 0 ? 0 : kept_first[kv.num_rows]; }
  [[nodiscard]] std::int64_t total_dropped() const { return kv.num_rows == 0 ? 0 : dropped_first[kv.num_rows]; }
  // Bound of kept tokens that receive a dropped one.
  [[nodiscard]] std::int64_t most_targets() const {
    std::int64_t n = 0;
    for (std::int32_t r = 0; r < kv.num_rows; ++r) n += std::min(num_kept(r), num_dropped(r));
    return n;
  }
};

}  // namespace kvlab
