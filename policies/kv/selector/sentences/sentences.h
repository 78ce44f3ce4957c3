#pragma once

#include <cstdint>

#include "kernels/kv_rows.h"
#include "kernels/ops.h"
#include "kernels/select/unit_lists.h"

// SentenceKV, Zhu et al. 2025, arXiv:2504.00970.
namespace kvlab {

// Numbers sentences by position: a new one begins after a run of closing token ids, or, without such ids, every `span_tokens` positions.
// Adds positions [begin[s], end[s]).
struct SplitSentences {
  std::int32_t num_sequences = 0, span_tokens = 1, num_closing = 0;
  const std::int32_t* closing = nullptr;                // [num_closing] ascending
  const std::int32_t* const* ids = nullptr;             // [num_sequences] -> by position; used where num_closing > 0
  const std::int32_t *begin = nullptr, *end = nullptr;  // [num_sequences]
  std::int32_t* const* sentence_of = nullptr;           // [num_sequences] -> by position
};
OpCall call(const SplitSentences&);
void run_cpu(const SplitSentences&);
void run_cuda(const SplitSentences&, CudaContext&);  // ids and closing are in CPU memory, sentence_of in device memory.

// Mean key of each sentence over its candidates: the row's listed tokens, then all of [dense_begin[r], dense_end[r]). Sentences with
// candidates are counted 0, 1, ... along the row. Only `fresh[r]` candidates count as new.
struct SentenceMeans {
  KvRows kv;
  const std::int32_t* const* sentence_of = nullptr;                  // [num_sequences] -> by position
  UnitLists listed;                                                  // ascending, before dense_begin
  const std::int32_t *dense_begin = nullptr, *dense_end = nullptr;   // [num_rows]
  const std::int32_t* fresh = nullptr;                               // [num_rows]
  float* const* means = nullptr;                                     // [num_rows] -> [candidates, head_dim] out, one line per sentence
  std::int32_t *const *token = nullptr, *const *sentence = nullptr;  // [num_rows] -> [candidates] out
  std::int32_t* count = nullptr;                                     // [num_rows] out: sentences

  [[nodiscard]] std::int64_t candidates(std::int32_t r) const { return listed.size(r) + dense_end[r] - dense_begin[r]; }
};
// Only new keys are counted.
OpCall call(const SentenceMeans&);
void run_cpu(const SentenceMeans&);
void run_cuda(const SentenceMeans&, CudaContext&);  // `count` is in CPU memory; waits for the stream.

// index_first[r + 1] - index_first[r] candidates of each row, ascending: those of the best sentences (ties: the earlier one), and the
// earlier tokens of the last one.
struct TakeSentences {
  std::int32_t num_rows = 0;
  const std::int64_t* score_first = nullptr;  // [num_rows + 1] sentences
  const float* scores = nullptr;
  const std::int32_t* candidates = nullptr;                                // [num_rows]
  const std::int32_t *const *token = nullptr, *const *sentence = nullptr;  // of SentenceMeans
  const std::int64_t* index_first = nullptr;                               // [num_rows + 1]
  std::int32_t* index = nullptr;                                           // out
};
OpCall call(const TakeSentences&);
void run_cpu(const TakeSentences&);
void run_cuda(const TakeSentences&, CudaContext&);

}  // namespace kvlab
