#include "policies/kv/prefill_selector/count_from/count_from.h"

#include <algorithm>

namespace kvlab {

OpCall call(const CountFrom& a) {
  return {.op = "count_from", .rows = a.num_lists, .tokens = a.first[a.num_lists], .outputs = a.num_lists, .bytes = 8LL * a.num_lists};
}

void run_cpu(const CountFrom& a) {
  for (std::int32_t l = 0; l < a.num_lists; ++l) {
    const std::int32_t* const end = a.index + a.first[l + 1];
    a.count[l] = static_cast<std::int32_t>(end - std::lower_bound(a.index + a.first[l], end, a.from));
  }
}

}  // namespace kvlab
