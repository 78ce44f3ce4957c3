#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/listed_tokens.h"
#include "kernels/ops.h"
#include "kernels/storage/token_copy_op.h"

namespace kvlab {

class StoredCode;
struct EncodedRows;

// Stores only a row's `keep` channels of largest score; the others become 0 (ThinK, Xu et al. 2024, arXiv:2407.21018, eq. 7). Ties go to
// the lower channel.
struct PruneChannels {
  ListedTokens tokens;
  const float* channel_score = nullptr;  // [*, head_dim]; row r has line line[r]
  const std::int32_t* line = nullptr;    // [num_rows]
  std::int32_t keep = 0;
};
// All channels [head_dim], best first. The scores are in CPU memory.
std::vector<std::int32_t> ranked_channels(const PruneChannels&, std::int32_t row);

OpCall call(const PruneChannels&);
void run_cpu(const PruneChannels&);
void run_cuda(const PruneChannels&, CudaContext&);

// As numbers of the kept channels, and a bit for each channel.
inline VectorCopy unpacking(const PruneChannels& a) { return {a.tokens, TokenCopyWay::kIntoPages, nullptr, nullptr, a.keep}; }
std::unique_ptr<StoredCode> stored_code(const PruneChannels&, const EncodedRows&);

}  // namespace kvlab
