#pragma once

#include <cstdint>

#include "kernels/ops.h"

namespace kvlab {

// Tokens [begin, begin + len) of each row in blocks of units_per_block units of unit_tokens tokens: every token gets the largest mean score
// of a unit of its block. len is a multiple of a block. Other tokens keep their scores. In place.
struct UnitBlockScores {
  std::int32_t num_rows = 0;
  const std::int64_t* first = nullptr;                  // [num_rows + 1]
  const std::int32_t *begin = nullptr, *len = nullptr;  // [num_rows]
  std::int32_t unit_tokens = 1, units_per_block = 1;
  float* scores = nullptr;
};
// Scores are read and written once; a sum per token and a comparison per unit.
OpCall call(const UnitBlockScores&);
void run_cpu(const UnitBlockScores&);

}  // namespace kvlab
