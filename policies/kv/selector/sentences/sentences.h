#pragma once

#include <cstdint>

#include "kernels/kv_rows.h"
#include "kernels/ops.h"
#include "kernels/select/unit_lists.h"

// Sentences as units of retrieval: SentenceKV, Zhu et al. 2025, arXiv:2504.00970.
namespace kvlab {

// Numbers sentences by position: a new one begins after a run of closing token ids, or, if no ids close sentences, every `span_tokens`
// positions. Adds positions [begin[s], end[s]).
struct SplitSentences {
  std::int32_t num_sequences = 0, span_tokens = 1, num_closing = 0;
  const std::int32_t* closing = nullptr;                // [num_closing] token ids, ascending
  const std::int32_t* const* ids = nullptr;             // [num_sequences] -> by position; used where num_closing > 0
  const std::int32_t *begin = nullptr, *end = nullptr;  // [num_sequences]
  std::int32_t* const* sentence_of = nullptr;           // [num_sequences] -> by position
};
// Ids are read, numbers written.
OpCall call(const SplitSentences&);
void run_cpu(const SplitSentences&);
void run_cuda(const SplitSentences&, CudaContext&);  // ids and closing are in CPU memory, sentence_of in device memory.

// Mean key of each sentence over its candidates: the listed tokens of a row and, after them, all of [dense_begin[r], dense_end[r]).
// Sentences with candidates are counted 0, 1, ... along the row. Only `fresh[r]` of the candidates count as new in this call.
struct SentenceMeans {
  KvRows kv;
  const std::int32_t* const* sentence_of = nullptr;                  // [num_sequences] -> by position
  UnitLists listed;                                                  // tokens, ascending, before dense_begin
  const std::int32_t *dense_begin = nullptr, *dense_end = nullptr;   // [num_rows]
  const std::int32_t* fresh = nullptr;                               // [num_rows]
  float* const* means = nullptr;                                     // [num_rows] -> [candidates, head_dim] out, one line per sentence
  std::int32_t *const *token = nullptr, *const *sentence = nullptr;  // [num_rows] -> [candidates] out: the candidate, its sentence
  std::int32_t* count = nullptr;                                     // [num_rows] out: sentences

  [[nodiscard]] std::int64_t candidates(std::int32_t r) const { return listed.size(r) + dense_end[r] - dense_begin[r]; }
};
// New keys are read and added to a mean, which is read and written, at the keys' precision.
OpCall call(const SentenceMeans&);
void run_cpu(const SentenceMeans&);
void run_cuda(const SentenceMeans&, CudaContext&);  // `count` is in CPU memory; waits for the stream.

// Candidates of the best sentences, sentence by sentence (ties: the earlier one), and the earlier tokens of the last one if it does not fit
// whole: index_first[r + 1] - index_first[r] tokens of each row, ascending.
struct TakeSentences {
  std::int32_t num_rows = 0;
  const std::int64_t* score_first = nullptr;  // [num_rows + 1] sentences
  const float* scores = nullptr;
  const std::int32_t* candidates = nullptr;                                // [num_rows]
  const std::int32_t *const *token = nullptr, *const *sentence = nullptr;  // of SentenceMeans
  const std::int64_t* index_first = nullptr;                               // [num_rows + 1]
  std::int32_t* index = nullptr;                                           // out
};
// Scores, candidates' sentences and the lists are read once and written once; a sort of n sentences counts n log2(n) comparisons.
OpCall call(const TakeSentences&);
void run_cpu(const TakeSentences&);
void run_cuda(const TakeSentences&, CudaContext&);

}  // namespace kvlab
