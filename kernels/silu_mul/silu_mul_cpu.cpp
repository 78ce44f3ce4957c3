#include "kernels/lanes_cpu.h"
#include "kernels/silu_mul/silu_mul.h"

namespace kvlab {

void run_cpu(const SiluMul& a) {
  const std::int64_t size = a.tokens * a.width;
  for (std::int64_t i = 0; i < size; i += kLanes) {
    const std::int64_t n = size - i;
    const Lanes gate = load(a.gate + i, n), up = load(a.up + i, n);
    store(gate / (1.0F + (-gate).exp()) * up, a.out + i, n);
  }
}

}  // namespace kvlab
