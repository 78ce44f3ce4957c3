#pragma once

#include "kernels/attention/append_kv/append_kv.h"
#include "kernels/rows/search.h"
#include "kernels/storage/quantize/group_codec.cuh"

namespace kvlab::append {

struct Args {
  PagedKv kv;
  const void* k;
  const void* v;
  std::int64_t token_stride;
  const std::int32_t* first_token;
  std::int32_t sequences;
  std::int32_t* position;
};

struct NewTokens {
  std::int32_t sequence, first, count;
};
__device__ __forceinline__ NewTokens new_tokens(const Args& a, std::int32_t sequence) {
  if (a.first_token == nullptr) return {sequence, sequence, 1};
  const std::int32_t first = a.first_token[sequence];
  return {sequence, first, a.first_token[sequence + 1] - first};
}
// The last one that starts at or before the token.
__device__ __forceinline__ std::int32_t sequence_of(const Args& a, std::int64_t token) {
  if (a.first_token == nullptr) return static_cast<std::int32_t>(token);
  return count_first(a.sequences - 1, [&](std::int32_t s) { return a.first_token[s + 1] <= token; });
}

void run_kivi(const Args& a, std::int32_t most_new, CudaContext& cuda);

}  // namespace kvlab::append
