#pragma once

#include <cstdint>

#include "kernels/ops.h"

namespace kvlab {

// Per ascending list the number of entries that are not below `from`.
struct CountFrom {
  std::int32_t num_lists = 0;
  const std::int64_t* first = nullptr;  // [num_lists + 1]
  const std::int32_t* index = nullptr;
  std::int32_t from = 0;
  std::int32_t* count = nullptr;  // [num_lists] out, real memory; untouched where only shapes are known
};
// A bisection of each list.
OpCall call(const CountFrom&);
void run_cpu(const CountFrom&);

}  // namespace kvlab
