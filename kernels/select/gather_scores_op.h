#pragma once

#include "kernels/rows/row_op.h"

namespace kvlab {

// out[index_first[r] + j] = scores[first[r] + index[index_first[r] + j]]. `out` may be `scores`: no score moves to a later index.
struct GatherScores {
  std::int32_t num_rows = 0;
  const std::int64_t* first = nullptr;        // [num_rows + 1]
  const float* scores = nullptr;              // [first[num_rows]]
  const std::int64_t* index_first = nullptr;  // [num_rows + 1]
  const std::int32_t* index = nullptr;        // [index_first[num_rows]]
  float* out = nullptr;                       // [index_first[num_rows]]

  [[nodiscard]] OpCall cost() const {
    const std::int64_t kept = index_first[num_rows];
    return {.op = "gather_scores", .rows = num_rows, .tokens = kept, .outputs = kept, .bytes = 12 * kept};
  }
  // One team, row after row: in place a row's scores move to where those of earlier rows were.
  [[nodiscard]] std::int64_t rows() const { return num_rows > 0 ? 1 : 0; }
  void shapes(auto&& visit) { visit(first, num_rows + 1), visit(index_first, num_rows + 1); }
  [[nodiscard]] std::int64_t room(std::int64_t /*all*/) const {
    std::int64_t most = 0;
    for (std::int32_t r = 0; r < num_rows; ++r) most = most < kept(r) ? kept(r) : most;
    return most;
  }

  template <class Team>
  KVLAB_BODY void operator()(const Team& team, std::int64_t /*all*/) const {
    float* const taken = team.room();
    for (std::int64_t r = 0; r < num_rows; ++r) {
      team.each(kept(r), [&](std::int64_t j) { taken[j] = scores[first[r] + index[index_first[r] + j]]; });
      team.each(kept(r), [&](std::int64_t j) { out[index_first[r] + j] = taken[j]; });
    }
  }

 private:
  [[nodiscard]] KVLAB_BOTH std::int64_t kept(std::int64_t row) const { return index_first[row + 1] - index_first[row]; }
};
KVLAB_ROW_OP(GatherScores)

}  // namespace kvlab
