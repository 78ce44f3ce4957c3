#include "kernels/fill/fill.h"

#include <algorithm>

namespace kvlab {

// Writes alone.
OpCall call(const Fill& a) {
  OpCall c{"fill", a.num_rows, 0, 0, 0, 0};
  for (std::int32_t r = 0; r < a.num_rows; ++r)
    if (a.chosen == nullptr || a.chosen[r] != 0) c.outputs += a.first[r + 1] - a.first[r];
  c.bytes = 4 * c.outputs;
  return c;
}

void run_cpu(const Fill& a) {
  for (std::int32_t r = 0; r < a.num_rows; ++r)
    if (a.chosen == nullptr || a.chosen[r] != 0) std::fill(a.scores + a.first[r], a.scores + a.first[r + 1], a.value);
}

}  // namespace kvlab
