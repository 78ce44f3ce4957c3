#include "kernels/select/guess_queries/guess_queries.h"

#include <cmath>

#include "base/parallel.h"
#include "kernels/model/layer/layer.h"

namespace kvlab {

OpCall call(const GuessQueries& a) {
  const std::int64_t n = a.num_sequences, width = std::int64_t{a.q_heads} * a.head_dim, d = a.hidden_dim;
  const std::int64_t weights = n > 0 ? 2 * width * d : 0;
  return {.op = "guess_queries",
          .rows = n,
          .tokens = 0,
          .outputs = n,
          .bytes = weights + n * 4 * (d + width + a.head_dim),
          .flops = n * (2 * width * d + 3 * width),
          .shared_bytes = weights};
}

namespace {

void norm_head(const QueryWeights& weights, float* x, std::int32_t d) {
  double sum = 0;
  for (std::int32_t c = 0; c < d; ++c) sum += static_cast<double>(x[c]) * static_cast<double>(x[c]);
  const auto scale = static_cast<float>(1 / std::sqrt(sum / d + static_cast<double>(weights.epsilon)));
  for (std::int32_t c = 0; c < d; ++c) x[c] *= scale * weights.norm[c];
}

}  // namespace

void run_cpu(const GuessQueries& a) {
  const std::int64_t width = std::int64_t{a.q_heads} * a.head_dim;
  for_each_in_parallel(std::int64_t{a.num_sequences} * a.q_heads, [&](std::int64_t i) {
    const std::int64_t s = i / a.q_heads, head = i % a.q_heads;
    float* const out = a.out + s * width + head * a.head_dim;
    for (std::int32_t c = 0; c < a.head_dim; ++c) {
      const std::int64_t row = head * a.head_dim + c;
      float sum = 0;
      for (std::int32_t j = 0; j < a.hidden_dim; ++j) sum += a.weights.w[row * a.hidden_dim + j] * a.hidden[s][j];
      out[c] = sum + (a.weights.bias == nullptr ? 0.0F : a.weights.bias[row]);
    }
    if (a.weights.norm != nullptr) norm_head(a.weights, out, a.head_dim);
  });
  if (a.cos != nullptr) run_cpu(Rope{a.out, a.out, a.cos, a.sin, nullptr, nullptr, a.num_sequences, a.q_heads, a.head_dim});
}

}  // namespace kvlab
