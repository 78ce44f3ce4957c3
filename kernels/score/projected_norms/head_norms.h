#pragma once

#include "kernels/score/projected_norms/projected_norms.h"

namespace kvlab {

// Norms of W_h v_i per query head: head g of row r from group * first[r] + g * len[r] on. Device pointers.
void head_norms(const KvRows& kv, const float* w_o, std::int32_t hidden_dim, ProjectedNorms::Kind kind, float* out, CudaContext& cuda);

}  // namespace kvlab
