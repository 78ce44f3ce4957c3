#pragma once

#include <cstdint>

#include "kernels/kv_rows.h"
#include "kernels/ops.h"

namespace kvlab {

// Mean of the given queries of each sequence, all heads; a sequence without queries gets zeros.
struct MeanQuery {
  std::int32_t num_sequences = 0, width = 0;  // q_heads * head_dim
  const Queries* queries = nullptr;           // [num_sequences]
  float* mean = nullptr;                      // [num_sequences, width] out
};
// Queries are read, means written at 2 bytes per value.
OpCall call(const MeanQuery&);
void run_cpu(const MeanQuery&);
void run_cuda(const MeanQuery&, CudaContext&);

// Mean of the queries since the current sentence began: the step's newest query is added to `sums`, which is reset if the token before it
// ended a sentence (see sentences.h) or `fresh` is 1.
struct SentenceQuery {
  std::int32_t num_sequences = 0, width = 0;
  const Queries* queries = nullptr;                  // [num_sequences]
  const std::int32_t* const* sentence_of = nullptr;  // [num_sequences] -> by position, of SplitSentences
  const std::int32_t* fresh = nullptr;               // [num_sequences] 0 or 1
  float* const* sums = nullptr;                      // [num_sequences] -> [width + 1]: the sum, then the number of queries
  float* mean = nullptr;                             // [num_sequences, width] out
};
// The query is read, the mean written at 2 bytes per value, the sum read and written at 4.
OpCall call(const SentenceQuery&);
void run_cpu(const SentenceQuery&);
void run_cuda(const SentenceQuery&, CudaContext&);

}  // namespace kvlab
