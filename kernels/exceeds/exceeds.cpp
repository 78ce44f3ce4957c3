#include "kernels/exceeds/exceeds.h"

namespace kvlab {

OpCall call(const Exceeds& a) { return {"exceeds", a.num_values, 0, a.num_values, 8 * std::int64_t{a.num_values}, a.num_values}; }

void run_cpu(const Exceeds& a) {
  for (std::int32_t i = 0; i < a.num_values; ++i) a.flag[i] = a.values[i] > a.threshold ? 1 : 0;
}

}  // namespace kvlab
