#pragma once

#include <cstdint>

#include "kernels/kv_rows.h"
#include "kernels/ops.h"

namespace kvlab {

// All heads; zeros without queries.
struct MeanQuery {
  std::int32_t num_sequences = 0, width = 0;  // q_heads * head_dim
  const Queries* queries = nullptr;           // [num_sequences]
  float* mean = nullptr;                      // [num_sequences, width] out
};
OpCall call(const MeanQuery&);
void run_cpu(const MeanQuery&);
void run_cuda(const MeanQuery&, CudaContext&);

// Since the current sentence began: the newest query is added to `sums`, which is reset if the token before it ended a sentence (see
// sentences.h) or `fresh` is 1.
struct SentenceQuery {
  std::int32_t num_sequences = 0, width = 0;
  const Queries* queries = nullptr;                  // [num_sequences]
  const std::int32_t* const* sentence_of = nullptr;  // [num_sequences] -> by position, of SplitSentences
  const std::int32_t* fresh = nullptr;               // [num_sequences] 0 or 1
  float* const* sums = nullptr;                      // [num_sequences] -> [width + 1]: sum, number of queries
  float* mean = nullptr;                             // [num_sequences, width] out
};
OpCall call(const SentenceQuery&);
void run_cpu(const SentenceQuery&);
void run_cuda(const SentenceQuery&, CudaContext&);

}  // namespace kvlab
