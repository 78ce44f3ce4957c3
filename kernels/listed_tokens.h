#pragma once

#include <cstdint>

#include "kernels/kv_rows.h"

namespace kvlab {

// Entry i of row r is token index[first[r] + i], ascending. Lengths are bounds known without data; unused entries at the end: -1.
struct ListedTokens {
  KvRows kv;
  const std::int64_t* first = nullptr;  // [kv.num_rows + 1]
  const std::int32_t* index = nullptr;  // [total()]
  bool values = false;                  // V, not K

  [[nodiscard]] std::int64_t total() const { return kv.num_rows == 0 ? 0 : first[kv.num_rows]; }
  [[nodiscard]] KVLAB_BOTH std::int32_t entries(std::int64_t row) const { return static_cast<std::int32_t>(first[row + 1] - first[row]); }
  [[nodiscard]] std::int32_t most_entries() const {
    std::int32_t most = 0;
    for (std::int32_t r = 0; r < kv.num_rows; ++r) most = entries(r) > most ? entries(r) : most;
    return most;
  }
  // Used entries. Needs data.
  [[nodiscard]] std::int32_t count(std::int32_t row) const {
    std::int32_t n = entries(row);
    while (n > 0 && index[first[row] + n - 1] < 0) --n;
    return n;
  }
  // [head_dim] of entry i.
  [[nodiscard]] float* at(std::int32_t row, std::int32_t i) const {
    const std::int32_t token = index[first[row] + i];
    return values ? kv.value(row, token) : kv.key(row, token);
  }
  [[nodiscard]] ListedTokens of_values() const {
    ListedTokens v = *this;
    v.values = true;
    return v;
  }
  // In the model's precision.
  [[nodiscard]] std::int64_t dense_bytes() const { return total() * kv.head_dim * kv.kv_bytes; }
  [[nodiscard]] std::int64_t list_bytes() const { return 4 * total(); }
};

}  // namespace kvlab
