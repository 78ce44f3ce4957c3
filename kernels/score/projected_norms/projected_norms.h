#pragma once

#include "kernels/kv_rows.h"
#include "kernels/ops.h"

namespace kvlab {

// Mean over the group's query heads h of the L1 (or L2) norm of W_h v_i, W_h = columns [h d, (h + 1) d) of W_o. CriticalKV, Feng et al.
// 2025.
struct ProjectedNorms {
  enum class Kind : std::uint8_t { kL1, kL2 };
  KvRows kv;
  const float* w_o = nullptr;  // [hidden_dim, kv_heads * group * head_dim]
  std::int32_t hidden_dim = 0;
  Kind kind = Kind::kL1;
  float* out = nullptr;  // [kv.total()]
};
OpCall call(const ProjectedNorms&);
void run_cpu(const ProjectedNorms&);
void run_cuda(const ProjectedNorms&, CudaContext&);

// Norms of W_h v_i per query head: head g of row r from group * first[r] + g * len[r] on. Device pointers.
void head_norms(const KvRows& kv, const float* w_o, std::int32_t hidden_dim, ProjectedNorms::Kind kind, float* out, CudaContext& cuda);

}  // namespace kvlab
