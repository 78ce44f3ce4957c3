#pragma once

#include <cstdint>
#include <span>

#include "kernels/kv_rows.h"
#include "kernels/ops.h"

namespace kvlab {

// Attention from an extra pass, fp32. A chunk's query t sees cached positions < min(sinks, ctx_begin) and in [ctx_begin, ctx_end), and the
// pass's tokens 0..t. Scores in the range reduce queries, group, then chunks (max or sum); others are 0. `norms` multiplies by |W_o^h v_i|
// / |hidden_t| (kHidden: KVzip+, Kim et al. 2025) or |W_o^h v_i| gradient_t (kGradient: KVgrad).
struct PassAttention {
  enum class Reduce : std::uint8_t { kMax, kSum };
  enum class Group : std::uint8_t { kMax, kMean };
  enum class Norms : std::uint8_t { kNone, kHidden, kGradient };
  KvRows kv;
  std::span<const std::span<const PassQueries>> pass;  // chunks per sequence
  std::int32_t sinks = 0;
  Reduce queries = Reduce::kMax;
  Group group = Group::kMax;
  Norms norms = Norms::kNone;
  const float* w_o = nullptr;  // [hidden_dim, q_heads * head_dim]
  std::int32_t hidden_dim = 0;
  float* scores = nullptr;  // [kv.total()] out
};
// As if no chunk's token were evicted.
OpCall call(const PassAttention&);
void run_cpu(const PassAttention&);
void run_cuda(const PassAttention&, CudaContext&);

}  // namespace kvlab
