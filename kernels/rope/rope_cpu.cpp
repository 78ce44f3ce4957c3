#include "kernels/rope/rope.h"

namespace kvlab {

void run_cpu(const Rope& a) {
  const std::int64_t half = a.head_dim / 2;
  for (std::int64_t t = 0; t < a.tokens; ++t) {
    const float* const cos = a.cos + t * half;
    const float* const sin = a.sin + t * half;
    for (std::int64_t h = 0; h < a.heads; ++h) {
      float* const low = a.x + (t * a.heads + h) * a.head_dim;
      float* const high = low + half;
      for (std::int64_t i = 0; i < half; ++i) {
        const float x = low[i], y = high[i];
        low[i] = x * cos[i] - y * sin[i];
        high[i] = y * cos[i] + x * sin[i];
      }
    }
  }
}

}  // namespace kvlab
