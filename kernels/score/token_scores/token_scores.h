#pragma once

#include <cstdint>

#include "kernels/kv_rows.h"
#include "kernels/ops.h"

namespace kvlab {

// A score per cached token from its position and from the statistics that TokenStats keeps; higher stays. e = end_position[s], one
// past the sequence's last token; age = e - position: the queries that saw the token, its own included.
//   kPosition    position
//   kRandom      uniform in [0, 1), a function of (seeds[s], KV head, position) alone
//   kSum         f0                     kMean    f0 / age
//   kSpread      sqrt(max(0, f1 / age - (f0 / age)^2))                       RoCo, Ren and Zhu 2024
//   kRingSet     ones in the ring
//   kRingClear   -(zeros among the min(ring_tokens, age) ring bits in use)   Scissorhands, Liu et al. 2023
//   kRecurrence  2 s(-idle / max(gap, 1)) + (gap > 0 ? 2 s(-gap - 1) : 0), s the logistic function, gap = u1 the largest interval
//                between hits, idle the steps since the last hit              LazyEviction, Zhang et al. 2025
//   kLastHit     u0, at first position + 1
//   kHits        u1 + 1
struct TokenScores {
  enum class Kind : std::uint8_t { kPosition, kRandom, kSum, kMean, kSpread, kRingSet, kRingClear, kRecurrence, kLastHit, kHits };
  KvRows kv;
  Kind kind = Kind::kPosition;
  std::int32_t first_word = 0;
  std::int32_t ring_tokens = 0;
  const std::int32_t* end_position = nullptr;  // [kv.num_sequences()]
  const std::int64_t* seeds = nullptr;         // [kv.num_sequences()] of kRandom
  float* scores = nullptr;                     // [kv.total()] out
  [[nodiscard]] std::int32_t num_words() const;
};
// Channels and positions are read, scores written; four operations per token and channel.
OpCall call(const TokenScores&);
void run_cpu(const TokenScores&);
void run_cuda(const TokenScores&, CudaContext&);

}  // namespace kvlab
