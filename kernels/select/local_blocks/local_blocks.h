#pragma once

#include "kernels/select/prompt_blocks.h"

namespace kvlab {

// Marks the blocks that hold a prompt's first tokens and the newest before a query: key block j of query block i if j < ceil(sinks / block)
// or i - j <= ceil(recent / block). The A-shape pattern of MInference, Jiang et al. 2024, arXiv:2407.02490; StreamingLLM, Xiao et al. 2024.
struct LocalBlocks {
  PromptBlocks prompt;                   // q and k are not read
  const std::int32_t* sinks = nullptr;   // [q_heads] tokens, in CPU memory
  const std::int32_t* recent = nullptr;  // [q_heads] tokens, in CPU memory; a head with 0 of both is unchanged
  std::int32_t* marks = nullptr;         // [num_lists, mark_words] added to
};
// Marks that are set, of the query blocks' own and earlier ones.
std::int64_t marked(const LocalBlocks&, std::int64_t list);
// Marks are read and written.
OpCall call(const LocalBlocks&);
void run_cpu(const LocalBlocks&);

}  // namespace kvlab
