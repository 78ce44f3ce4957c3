#pragma once

#include <cstdint>

#include "kernels/attention/attention_stats/attention_stats.h"
#include "kernels/kv_rows.h"
#include "kernels/ops.h"

// SpeCache, Jie et al. 2025, arXiv:2503.16163.
namespace kvlab {

// Groups of `group` tokens of a channel of K, or `group` neighbouring channels of a token of V, share zero and scale (fp16); x ~ zero +
// scale * code. zero = min, scale = (max - min) / (2^bits - 1); with one bit zero = (3 min + max) / 4 and scale = (max - min) / 2.
struct LowBitCode {
  std::int32_t bits = 2, group = 32;
  // `tokens`: whole groups.
  [[nodiscard]] std::int64_t bytes(std::int64_t tokens, std::int32_t head_dim) const;
};

// Decodes tokens [0, covered[r]) into out; others are unchanged. covered[r] is a multiple of code.group. All are computed, but only tokens
// from coded[r] on count as encoded.
struct LowBitCopy {
  KvRows kv;
  LowBitCode code;
  const std::int32_t *coded = nullptr, *covered = nullptr;  // [kv.num_rows], coded <= covered
  KvRows out;                                               // same lengths, own memory
};
OpCall call(const LowBitCopy&);
void run_cpu(const LowBitCopy&);
void run_cuda(const LowBitCopy&, CudaContext&);  // `out` has the type of `kv`.

struct LowBitAttention {
  AttentionStats stats;  // over LowBitCopy::out
  LowBitCode code;
  const std::int32_t* covered = nullptr;  // [num_rows]
};
// As AttentionStats, with half of the covered tokens' codes (K) for their keys.
OpCall call(const LowBitAttention&);
void run_cpu(const LowBitAttention&);
void run_cuda(const LowBitAttention&, CudaContext&);

}  // namespace kvlab
