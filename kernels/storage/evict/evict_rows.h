#pragma once

#include <cstdint>

#include "kernels/kv_rows.h"
#include "kernels/ops.h"

namespace kvlab {

// A few tokens of each row go, and the row's last tokens take their places: K, V, positions and statistics. The tokens that stay are then
// the first ones of the row, in another order than that of their positions. The caller updates the lengths. A row that loses d of n tokens
// moves at most d; compaction (CompactRows) moves up to n - d.
struct EvictRows {
  // kLowest: the tokens of lowest score; of equal ones those at later positions go, as in TopK on rows in order. NaN counts as -infinity.
  // kPositions: the tokens at positions from[r], from[r] + 1, ..., which the row holds; the first is looked for at place guess[r] first.
  // kListed: `dropped` is given.
  enum class Choice : std::uint8_t { kLowest, kPositions, kListed };
  static constexpr std::int32_t kMost = 32;  // tokens of a row

  KvRows kv;
  const std::int64_t* first = nullptr;  // [num_rows + 1] rows in `dropped`; a row without tokens there stays as it is
  std::int32_t* dropped = nullptr;      // [first[num_rows]] places in the row, ascending
  Choice choice = Choice::kLowest;
  const float* scores = nullptr;        // kLowest: [kv.total()]
  const std::int32_t* from = nullptr;   // kPositions: [num_rows]
  const std::int32_t* guess = nullptr;  // kPositions: [num_rows]
  bool moves = true;                    // false: `dropped` is written and the rows stay as they are

  [[nodiscard]] std::int32_t count(std::int32_t row) const { return static_cast<std::int32_t>(first[row + 1] - first[row]); }
  [[nodiscard]] std::int64_t total() const { return kv.num_rows == 0 ? 0 : first[kv.num_rows]; }
};
// Read of a row that loses tokens: its scores; or of its positions the one at the guessed place, of a row that loses several all. Moved
// tokens are read and written once, as many as go.
OpCall call(const EvictRows&);
void run_cpu(const EvictRows&);
// On a GPU `first`, `from` and `guess` are in CPU memory.
void run_cuda(const EvictRows&, CudaContext&);

}  // namespace kvlab
