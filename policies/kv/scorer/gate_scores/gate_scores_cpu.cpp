#include <bit>
#include <cmath>
#include <vector>

#include "kernels/dot_cpu.h"
#include "policies/kv/scorer/gate_scores/gate_scores.h"

namespace kvlab {

namespace {

// norm(W h + bias) * weight, W [rank, hidden_dim]; bias null: 0.
std::vector<float> projected(const GateScores& a, const float* w, const float* bias, const float* weight, const float* h) {
  std::vector<float> x(static_cast<std::size_t>(a.rank));
  for (std::int32_t i = 0; i < a.rank; ++i)
    x[static_cast<std::size_t>(i)] = lane_dot(w + std::int64_t{i} * a.hidden_dim, h, a.hidden_dim) + (bias == nullptr ? 0.0F : bias[i]);
  const float scale = 1.0F / std::sqrt(lane_dot(x.data(), x.data(), a.rank) / static_cast<float>(a.rank) + 1e-6F);
  for (std::int32_t i = 0; i < a.rank; ++i) x[static_cast<std::size_t>(i)] *= scale * weight[i];
  return x;
}

float score(const GateScores& a, std::int32_t head, const float* h) {
  const std::int64_t r = a.rank, d = a.hidden_dim;
  const float scale = 1.0F / std::sqrt(static_cast<float>(r));
  const std::vector<float> k = projected(a, a.wk + head * r * d, nullptr, a.k_norm, h);
  float sum = 0;
  for (std::int64_t g = std::int64_t{head} * a.kv.group; g < (std::int64_t{head} + 1) * a.kv.group; ++g) {
    const std::vector<float> q = projected(a, a.wq + g * r * d, a.bq + g * r, a.q_norm, h);
    const float own = lane_dot(k.data(), q.data(), r) * scale + a.b[g];
    float others = 0;
    for (std::int64_t s = 0; s < a.sinks; ++s)
      others += std::exp(lane_dot(a.k_base + (head * std::int64_t{a.sinks} + s) * r, q.data(), r) * scale - own);
    sum += 1.0F / (1.0F + others);
  }
  return sum / static_cast<float>(a.kv.group);
}

}  // namespace

// Token by token, so that a score does not depend on the batch or the chunk of its token.
void run_cpu(const GateScores& a) {
  for (std::int32_t s = 0; s < a.kv.num_sequences(); ++s) {
    for (std::int32_t t = 0; t < a.new_tokens[s]; ++t) {
      for (std::int32_t h = 0; h < a.kv.kv_heads; ++h) {
        const std::int32_t row = s * a.kv.kv_heads + h, token = a.kv.len[row] - a.new_tokens[s] + t;
        if (token < 0) continue;
        a.kv.word(a.channel, row, token) = std::bit_cast<std::uint32_t>(score(a, h, a.hidden[s] + std::int64_t{t} * a.hidden_dim));
      }
    }
  }
}

}  // namespace kvlab
