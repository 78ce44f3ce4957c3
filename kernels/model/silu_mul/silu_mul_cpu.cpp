#include <algorithm>

#include "base/ceil_div.h"
#include "base/parallel.h"
#include "kernels/lanes_cpu.h"
#include "kernels/model/silu_mul/silu_mul.h"

namespace kvlab {

void run_cpu(const SiluMul& a) {
  constexpr std::int64_t kTask = 1 << 14;
  const std::int64_t size = a.tokens * a.width;
  for_each_in_parallel(ceil_div(size, kTask), [&](std::int64_t task) {
    for (std::int64_t i = task * kTask; i < std::min(size, (task + 1) * kTask); i += kLanes) {
      const std::int64_t n = size - i;
      const Lanes gate = load(a.gate + i, n), up = load(a.up + i, n);
      store(gate / (1.0F + (-gate).exp()) * up, a.out + i, n);
    }
  });
}

}  // namespace kvlab
