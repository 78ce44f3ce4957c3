#pragma once

#include <cstdint>

#include "kernels/ops.h"

namespace kvlab {

// Counts scores of each row:
//   kAtLeast      those that are at least `limit`, NaN is not
//   kAbove        those above `limit`, NaN is not
//   kLeadingMass  of a descending row without negative scores the leading ones that hold the share `limit` of the row's sum: at least 1, 0
//                 for an empty row
struct CountScores {
  enum class Kind : std::uint8_t { kAtLeast, kAbove, kLeadingMass };
  std::int32_t num_rows = 0;
  const std::int64_t* first = nullptr;  // [num_rows + 1]
  const float* scores = nullptr;        // [first[num_rows]]
  Kind kind = Kind::kAtLeast;
  double limit = 0;
  std::int32_t* count = nullptr;  // [num_rows] out
};
// Scores are read once, a count per row is written; one comparison, or two additions, per score.
OpCall call(const CountScores&);
void run_cpu(const CountScores&);
void run_cuda(const CountScores&, CudaContext&);  // counts are in CPU memory: waits for the stream

}  // namespace kvlab
