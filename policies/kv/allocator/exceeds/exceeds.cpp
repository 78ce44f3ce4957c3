#include "policies/kv/allocator/exceeds/exceeds.h"

namespace kvlab {

OpCall call(const Exceeds& a) {
  return {.op = "exceeds", .rows = a.num_values, .outputs = a.num_values, .bytes = 8 * std::int64_t{a.num_values}, .flops = a.num_values};
}
KVLAB_WITHOUT_CUDA(Exceeds)

void run_cpu(const Exceeds& a) {
  for (std::int32_t i = 0; i < a.num_values; ++i) a.flag[i] = a.values[i] > a.threshold ? 1 : 0;
}

}  // namespace kvlab
