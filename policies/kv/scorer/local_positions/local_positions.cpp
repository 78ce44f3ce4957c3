#include "policies/kv/scorer/local_positions/local_positions.h"

namespace kvlab {

OpCall call(const LocalPositions& a) {
  return {.op = "local_positions", .rows = a.kv.num_rows, .tokens = a.kv.total(), .outputs = a.kv.total(), .bytes = 4 * a.kv.total()};
}

void run_cpu(const LocalPositions& a) {
  for (std::int32_t r = 0; r < a.kv.num_rows; ++r)
    for (std::int32_t i = 0; i < a.kv.len[r]; ++i) a.position[a.kv.slot(r, i)] = i;
}

}  // namespace kvlab
