#include "policies/kv/scorer/torch_uniform/torch_uniform.h"

#include <random>

namespace kvlab {

OpCall call(const TorchUniform& a) {
  const std::int64_t n = a.kv.total();
  return {.op = "torch_uniform", .rows = a.kv.num_rows, .tokens = n, .outputs = n, .bytes = 4 * n, .flops = 8 * n};
}

void run_cpu(const TorchUniform& a) {
  for (std::int32_t row0 = 0; row0 < a.kv.num_rows; row0 += a.kv.kv_heads) {
    std::mt19937 draw(a.seed);
    for (std::int64_t i = a.kv.first[row0]; i < a.kv.first[row0 + a.kv.kv_heads]; ++i)
      a.scores[i] = static_cast<float>(draw() & 0xFFFFFFU) * 0x1p-24F;
  }
}

}  // namespace kvlab
