#pragma once

#include <cstdint>

#include "kernels/ops.h"

namespace kvlab {

// Sets the scores of rows to one value.
struct Fill {
  std::int32_t num_rows = 0;
  const std::int64_t* first = nullptr;  // [num_rows + 1]
  float* scores = nullptr;
  float value = 0.0F;
  const std::int32_t* chosen = nullptr;  // [num_rows] 0: the row stays as it is; null: all rows are set
};
OpCall call(const Fill&);
void run_cpu(const Fill&);

}  // namespace kvlab
