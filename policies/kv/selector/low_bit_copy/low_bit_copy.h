#pragma once

#include <cstdint>

#include "kernels/attention/attention_stats/attention_stats.h"
#include "kernels/kv_rows.h"
#include "kernels/ops.h"

// A second copy of the cache in few bits beside the one in full precision: SpeCache, Jie et al. 2025, arXiv:2503.16163.
namespace kvlab {

// Groups of `group` consecutive tokens of a channel of K, and of `group` neighbouring channels of a token of V, share zero and scale
// (fp16). x ~ zero + scale * code; zero = min, scale = (max - min) / (2^bits - 1), but with one bit zero = (3 min + max) / 4 and
// scale = (max - min) / 2: the two levels are the quarter points of the range.
struct LowBitCode {
  std::int32_t bits = 2, group = 32;
  // Stored bytes of K and V of one row's first `tokens` tokens, whole groups.
  [[nodiscard]] std::int64_t bytes(std::int64_t tokens, std::int32_t head_dim) const;
};

// Decodes the copy: out holds tokens [0, covered[r]) of each row after coding, the others unchanged. covered[r] is a multiple of
// code.group. The copy is computed anew in every call, but only tokens from coded[r] on count as encoded in this one.
struct LowBitCopy {
  KvRows kv;
  LowBitCode code;
  const std::int32_t *coded = nullptr, *covered = nullptr;  // [kv.num_rows], coded <= covered
  KvRows out;                                               // same lengths, memory of its own
};
// K and V of newly coded tokens are read, codes written; 4 operations per element.
OpCall call(const LowBitCopy&);
void run_cpu(const LowBitCopy&);
void run_cuda(const LowBitCopy&, CudaContext&);  // `out` is of the type of `kv`.

// Attention over such a copy, reduced per token: AttentionStats that reads codes.
struct LowBitAttention {
  AttentionStats stats;  // over LowBitCopy::out
  LowBitCode code;
  const std::int32_t* covered = nullptr;  // [num_rows]
};
// Like AttentionStats, with half of the covered tokens' codes (K) in place of their keys.
OpCall call(const LowBitAttention&);
void run_cpu(const LowBitAttention&);
void run_cuda(const LowBitAttention&, CudaContext&);

}  // namespace kvlab
