#pragma once

#include "kernels/attention_decode/attention_decode_cuda.h"
#include "kernels/attention_prefill/attention_prefill_cuda.h"

namespace kvlab {

// Decode of sequences that share prefixes (Hydragen, Juravsky et al. 2024, arXiv:2402.05099): the queries of all sequences of a prefix are
// stacked, so that attention to it is one product of matrices and its keys are read once instead of once per sequence; each sequence's own
// tokens are the suffix. The two are merged by log-sum-exp, which is exact. All pointers are device memory.
struct DeviceHydragen {
  PagedDecode suffix;                               // queries, results and each sequence's tokens after its prefix; no probabilities
  const void* prefix_k = nullptr;                   // [pages, prefix_page_tokens, head_dim] of suffix.kv.type
  const void* prefix_v = nullptr;                   // [pages, prefix_page_tokens, head_dim]
  const std::int32_t* sequence_first = nullptr;     // [prefixes + 1] a prefix is shared by consecutive sequences
  const std::int32_t* prefix_len = nullptr;         // [prefixes * kv_heads] tokens; 0: none
  const std::int32_t* prefix_page_begin = nullptr;  // [prefixes * kv_heads]
  const std::int32_t* prefix_page = nullptr;
  std::int32_t prefixes = 0, prefix_page_tokens = 16;  // a multiple of 16
  std::int32_t longest_prefix = 0;                     // a bound of prefix_len
};

// The prefix attention as a prefill: the queries' own keys are not in the cache.
DevicePrefill prefix_part(const DeviceHydragen& a);
// prefix_tokens: the sum of prefix_len over the prefixes and one KV head. Every prefix token is read once, parts are written and read.
std::int64_t bytes(const DeviceHydragen& a, std::int64_t prefix_tokens);
// pairs: of a sequence and a token of its prefix, per KV head.
std::int64_t flops(const DeviceHydragen& a, std::int64_t pairs);
void run_cuda(const DeviceHydragen& a, CudaContext& cuda);

}  // namespace kvlab
