#pragma once

#include <cstdint>

#include "kernels/kv_rows.h"
#include "kernels/ops.h"

namespace kvlab {

// Adds the attention that each token received from probe queries to word `channel` (float32), averaged over the group's heads: softmax
// over the tokens that a probe sees, as TokenStats sums it. The probes come in pieces of consecutive positions; one pass reads K once
// for all of them.
struct ProbeSums {
  KvRows kv;
  std::int32_t channel = 0;
  const std::int64_t* first = nullptr;  // [num_sequences + 1] pieces of a sequence
  const Queries* pieces = nullptr;      // ascending by position
  const std::int32_t* end = nullptr;    // [num_sequences] one past the position of the sequence's newest token
};
// K, the probes and the word are read, the word is written; products and softmax of the pairs that the causal mask leaves, where the
// newest tokens of a row are held. Sequences without probes cost nothing.
OpCall call(const ProbeSums&);
void run_cpu(const ProbeSums&);
void run_cuda(const ProbeSums&, CudaContext&);

// Mean attention that each token received from the probe queries that could see it: the sum in word `channel` (float32) over the number of
// probes at or after the token's position, 0 if there are none (ZipCache, He et al. 2024, arXiv:2405.14256, eq. 8: plain sums would favour
// early tokens). Probes of sequence s are the positions [begin[j], end[j]), first[s] <= j < first[s + 1].
struct ProbeMean {
  KvRows kv;
  std::int32_t channel = 0;
  const std::int64_t* first = nullptr;  // [num_sequences + 1]
  const std::int32_t* begin = nullptr;
  const std::int32_t* end = nullptr;
  float* scores = nullptr;  // [kv.total()] out
};
// Sum and position are read, the score is written; one operation per token.
OpCall call(const ProbeMean&);
void run_cpu(const ProbeMean&);
void run_cuda(const ProbeMean&, CudaContext&);

// Number of each row's listed tokens, largest first, that hold at least `share` of the sum of all their words (float32): the number of
// important tokens in ZipVL (He et al. 2024, arXiv:2410.08584, eq. 4).
struct CoverMass {
  KvRows kv;
  std::int32_t channel = 0;
  const std::int64_t* first = nullptr;  // [num_rows + 1] the lists; entries of -1 hold nothing
  const std::int32_t* index = nullptr;
  double share = 0.975;
  std::int32_t* count = nullptr;  // [num_rows] out, real memory; untouched where only shapes are known
};
OpCall call(const CoverMass&);
void run_cpu(const CoverMass&);
void run_cuda(const CoverMass&, CudaContext&);  // waits for the stream

}  // namespace kvlab
