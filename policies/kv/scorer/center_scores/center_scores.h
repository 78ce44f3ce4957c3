#pragma once

#include "kernels/kv_rows.h"
#include "kernels/ops.h"

namespace kvlab {

// Products that keys are expected to have with later queries, if these are scattered around their mean (QueryCenters). With complex pairs
// of channels f, k a cached key (turned by RoPE to its position), m the mean query and s the mean size:
//   score(k) = sum over f of Re(conj(k_f) m_f w_f) + (s_f - |m_f|) |k_f|,   w_f = mean over j of exp(i omega_f (end - 1 + 2^j))
// for j in [0, num_offsets). That is TriAttention's series of cosines in the distance (Mao et al. 2026), whose mean over the offsets is
// taken before the sum; a common factor of RoPE scaling does not matter, because scores of a query head are then shifted to mean 0 and
// scaled to deviation 1 (divisor n, at least 1e-6) over the tokens of the row. out[i] = the maximum over the group's query heads.
struct CenterScores {
  KvRows kv;
  const float* const* mean = nullptr;   // [num_sequences] -> [kv_heads * group, head_dim], times `count`
  const float* const* size = nullptr;   // [num_sequences] -> [kv_heads * group, head_dim / 2], times `count`
  const std::int32_t* count = nullptr;  // [num_sequences] queries that were added up; at least 1
  const float* frequencies = nullptr;   // [num_sequences, head_dim / 2] radians per position; null: no RoPE, w = 1
  const std::int32_t* end = nullptr;    // [num_sequences] one past the newest position
  std::int32_t num_offsets = 17;
  float* out = nullptr;  // [kv.total()]
};
// Keys are read once. Per query head and token two products over the channels and one over the pairs, and six operations to standardize;
// the sizes of keys once per KV head.
OpCall call(const CenterScores&);
void run_cpu(const CenterScores&);

}  // namespace kvlab
