#include <algorithm>

#include "base/ceil_div.h"
#include "base/parallel.h"
#include "kernels/model/rope/rope.h"

namespace kvlab {

namespace {

constexpr std::int64_t kRotatedFloats = 1 << 15;

void rotate(const Rope& a, std::int64_t t) {
  const std::int64_t half = a.head_dim / 2;
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

}  // namespace

void run_cpu(const Rope& a) {
  const std::int64_t block = std::max<std::int64_t>(1, kRotatedFloats / std::max<std::int64_t>(1, a.heads * a.head_dim));
  for_each_in_parallel(ceil_div(a.tokens, block), [&](std::int64_t i) {
    for (std::int64_t t = i * block; t < std::min(a.tokens, (i + 1) * block); ++t) rotate(a, t);
  });
}

}  // namespace kvlab
