#pragma once

#include <cstdint>

#include "kernels/attention/attention_stats/attention_stats.h"

namespace kvlab {

// Attention that cached tokens received, in word channels from first_word on. With p = p_t[i] as in AttentionStats (softmax over the n_t
// visible tokens, reduced over the group), for each query t in order and visible token i:
//   kSum: f0 = decay * f0 + w_t p, w_t = 1 or n_t
//   kMoments: f0 += p, f1 += p^2
//   kRing: bit (t's position mod ring_tokens) = p >= 1 / n_t, or 1 / (t's position + 1); the bits fill ring_words() channels
//   kRecurrence: if p >= threshold: u1 = max(u1, steps since the last such query or the token), u0 = t's position + 1
//   kTopHits: the `top` tokens of largest p (ties to the lower index): u0 = t's position + 1, u1 += 1
// f: float32, u: uint32, initially 0. With noise_seeds, p is the softmax of (z + gumbel noise) / temperature (Keyformer, Adnan et al.
// 2024), temperature = 1 + noise_steps[s] * temperature_per_step; noise key: (noise_seeds[s], query head, query position, token position).
struct TokenStats {
  enum class Kind : std::uint8_t { kSum, kMoments, kRing, kRecurrence, kTopHits };
  KvRows kv;
  const Queries* queries = nullptr;  // [kv.num_sequences()]
  Kind kind = Kind::kSum;
  std::int32_t first_word = 0;
  AttentionStats::Group group = AttentionStats::Group::kMean;
  float decay = 1.0F;
  bool weigh_by_visible = false;
  std::int32_t ring_tokens = 0;
  bool threshold_by_position = false;
  float threshold = 0.0F;
  std::int32_t top = 0;
  const std::int64_t* noise_seeds = nullptr;  // [kv.num_sequences()] null: no noise
  const std::int32_t* noise_steps = nullptr;  // [kv.num_sequences()]
  float temperature_per_step = 0.0F;

  [[nodiscard]] static std::int32_t ring_words(std::int32_t ring_tokens) { return (ring_tokens + 31) / 32; }
  [[nodiscard]] std::int32_t num_words() const { return kind == Kind::kSum ? 1 : kind == Kind::kRing ? ring_words(ring_tokens) : 2; }
};

// Does not count noise draws, which dominate the time.
OpCall call(const TokenStats&);
void run_cpu(const TokenStats&);
void run_cuda(const TokenStats&, CudaContext&);  // without noise_seeds

}  // namespace kvlab
