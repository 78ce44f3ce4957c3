#include "kernels/head_mean/head_mean.h"

#include "base/error.h"

namespace kvlab {

OpCall call(const HeadMean& a) {
  for (std::int32_t r = 0; r < a.kv.num_rows; ++r)
    if (a.kv.len[r] != a.kv.len[r - r % a.kv.kv_heads])
      throw InternalError("head_mean: the KV heads of a sequence hold different numbers of tokens");
  return {"head_mean", a.kv.num_rows, a.kv.total(), a.kv.total(), 8 * a.kv.total(), a.kv.total()};
}

void run_cpu(const HeadMean& a) {
  for (std::int32_t row = 0; row < a.kv.num_rows; row += a.kv.kv_heads) {
    const std::int64_t n = a.kv.len[row];
    float* scores = a.scores + a.kv.first[row];  // of the sequence, [kv_heads, n]
    for (std::int64_t i = 0; i < n; ++i) {
      float sum = 0.0F;
      for (std::int32_t h = 0; h < a.kv.kv_heads; ++h) sum += scores[h * n + i];
      for (std::int32_t h = 0; h < a.kv.kv_heads; ++h) scores[h * n + i] = sum / static_cast<float>(a.kv.kv_heads);
    }
  }
}

}  // namespace kvlab
