#pragma once

#include <cstdint>

#include "base/config/params.h"
#include "sim/cost/model_spec.h"

namespace kvlab {

// Defaults of an index.
struct IndexSizes {
  std::int64_t heads = 0, dim = 0, tokens = 0;
};

// index_n_heads, index_head_dim and index_topk. Cached keys are fp8 with a 4-byte scale.
void read_sparse_index(Params& p, const IndexSizes& untold, ModelSpec& m);
// Key Delta Attention: decay per channel (Kimi Linear, arXiv:2510.26692).
struct KeyDelta {
  std::int64_t heads = 0, dim = 0, conv_tokens = 0;
  bool has_full_gate = false;  // one product, not two of low rank
};
LinearAttention key_delta(const KeyDelta& k);

}  // namespace kvlab
