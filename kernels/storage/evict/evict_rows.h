#pragma once

#include <cstdint>

#include "kernels/kv_rows.h"
#include "kernels/ops.h"

namespace kvlab {

// The last tokens of each row take the places of a few dropped ones: K, V, positions and statistics. Positions lose their order. The caller
// updates the lengths.
struct EvictRows {
  // kLowest: the tokens of lowest score; of equal ones those at later positions, as in TopK on rows in order. NaN counts as -infinity.
  // kPositions: the tokens at positions from[r], from[r] + 1, ..., which the row holds; guess[r] is the first place to try. kListed:
  // `dropped` is given.
  enum class Choice : std::uint8_t { kLowest, kPositions, kListed };
  static constexpr std::int32_t kMost = 32;  // per row

  KvRows kv;
  const std::int64_t* first = nullptr;  // [num_rows + 1]; empty: row unchanged
  std::int32_t* dropped = nullptr;      // [first[num_rows]] places in the row, ascending
  Choice choice = Choice::kLowest;
  const float* scores = nullptr;        // kLowest: [kv.total()]
  const std::int32_t* from = nullptr;   // kPositions: [num_rows]
  const std::int32_t* guess = nullptr;  // kPositions: [num_rows]
  bool moves = true;                    // false: only `dropped` is written

  [[nodiscard]] std::int32_t count(std::int32_t row) const { return static_cast<std::int32_t>(first[row + 1] - first[row]); }
  [[nodiscard]] std::int64_t total() const { return kv.num_rows == 0 ? 0 : first[kv.num_rows]; }
};
// Scores; or the position at the guessed place, or all positions of a row that loses several.
OpCall call(const EvictRows&);
void run_cpu(const EvictRows&);
// On a GPU `first`, `from` and `guess` are in CPU memory.
void run_cuda(const EvictRows&, CudaContext&);

}  // namespace kvlab
