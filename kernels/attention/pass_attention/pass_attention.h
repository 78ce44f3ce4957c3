#pragma once

#include <cstdint>
#include <span>

#include "kernels/kv_rows.h"
#include "kernels/ops.h"

namespace kvlab {

// Attention that the tokens of an extra pass pay to the cached tokens. A chunk's query t sees, in one softmax: the cached tokens at
// positions < min(sinks, ctx_begin), those at positions [ctx_begin, ctx_end), and the pass's own tokens 0..t. In fp32. For each cached
// token of the chunk's range: first the queries are reduced (max or sum), then the query heads of the group (max or mean), then the chunks
// (max or sum). Tokens in no range get 0. With `norms` every probability counts times |W_o^h v_i| / |hidden_t| (kHidden: KVzip+, Kim et al.
// 2025) or |W_o^h v_i| gradient_t (kGradient: KVgrad), with Euclidean norms and W_o^h the query head's columns of the output projection.
struct PassAttention {
  enum class Reduce : std::uint8_t { kMax, kSum };
  enum class Group : std::uint8_t { kMax, kMean };
  enum class Norms : std::uint8_t { kNone, kHidden, kGradient };
  KvRows kv;
  std::span<const std::span<const PassQueries>> pass;  // per sequence its chunks
  std::int32_t sinks = 0;
  Reduce queries = Reduce::kMax;
  Group group = Group::kMax;
  Norms norms = Norms::kNone;
  const float* w_o = nullptr;  // [hidden_dim, q_heads * head_dim]
  std::int32_t hidden_dim = 0;
  float* scores = nullptr;  // [kv.total()] out
};
// The products per query head and pair; counted as if none of a chunk's tokens were evicted. Each chunk reads its keys once; norms
// project every value once per query head.
OpCall call(const PassAttention&);
void run_cpu(const PassAttention&);
void run_cuda(const PassAttention&, CudaContext&);

}  // namespace kvlab
