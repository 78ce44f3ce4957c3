#pragma once

#include "kernels/kv_rows.h"
#include "kernels/ops.h"

namespace kvlab {

// Lists of tokens of each KV head of one sequence, for scorers that choose in rounds. On the CPU alone.

// The tokens of each head's list, then [begin, end): their numbers in the row and their slots.
struct ListCandidates {
  KvRows kv;
  std::int32_t sequence = 0, num_listed = 0, begin = 0, end = 0;
  const std::int32_t* listed = nullptr;  // [kv_heads, num_listed]
  std::int32_t* token = nullptr;         // [kv_heads, num_listed + end - begin] out
  std::int32_t* slot = nullptr;          // the same shape, out, in CPU memory
};
OpCall call(const ListCandidates&);
void run_cpu(const ListCandidates&);

// listed[h, j] = token[h, index[h, j]]. Without `token` the first num_listed numbers.
struct ListChosen {
  std::int32_t heads = 0, num_listed = 0, num_candidates = 0;
  const std::int32_t *token = nullptr, *index = nullptr;  // [heads, num_candidates], [heads, num_listed]
  std::int32_t* listed = nullptr;                         // [heads, num_listed] out
  bool is_first = false;                                  // the list of the first num_listed tokens
};
OpCall call(const ListChosen&);
void run_cpu(const ListChosen&);

// Scores of the sequence's tokens outside the lists become -infinity.
struct KeepListed {
  KvRows kv;
  std::int32_t sequence = 0, num_listed = 0;
  const std::int32_t* listed = nullptr;  // [kv_heads, num_listed]
  float* scores = nullptr;               // [kv.total()]
};
OpCall call(const KeepListed&);
void run_cpu(const KeepListed&);

}  // namespace kvlab
