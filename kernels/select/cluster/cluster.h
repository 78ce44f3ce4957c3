#pragma once

#include <cstdint>

#include "kernels/kv_rows.h"
#include "kernels/ops.h"

// Clusters of a prompt's keys: Squeezed Attention, Hooper et al. 2024, arXiv:2411.09688.
namespace kvlab {

// k-means by angle: Lloyd's rounds on unit keys, from keys spread evenly over the row. Empty clusters keep their direction; ties go to the
// lower. Centroids are means of unscaled keys, 0 if empty.
struct ClusterKeys {
  KvRows kv;
  const std::int32_t* tokens = nullptr;    // [num_rows] first tokens; 0: row unchanged
  const std::int32_t* clusters = nullptr;  // [num_rows] 1 <= clusters <= tokens
  std::int32_t rounds = 10;
  std::int32_t* const* cluster_of = nullptr;  // [num_rows] -> [tokens]
  float* const* centroids = nullptr;          // [num_rows] -> [clusters, head_dim]
  std::int32_t* const* sizes = nullptr;       // [num_rows] -> [clusters]
};
OpCall call(const ClusterKeys&);
void run_cpu(const ClusterKeys&);
void run_cuda(const ClusterKeys&, CudaContext&);

// The weight that clusters of `keep_frac` of the tokens exceed, over a sequence's rows and queries. Weights as PageScores with softmax and
// sizes, mean over heads.
struct ClusterThreshold {
  std::int32_t num_rows = 0, kv_heads = 1, group = 1, head_dim = 0, kv_bytes = 2;
  const Queries* queries = nullptr;            // [num_rows / kv_heads]; none: threshold unchanged
  const std::int32_t* clusters = nullptr;      // [num_rows]
  const float* const* centroids = nullptr;     // [num_rows] -> [clusters, head_dim]
  const std::int32_t* const* sizes = nullptr;  // [num_rows] -> [clusters]
  const double* keep_frac = nullptr;           // [num_rows / kv_heads]
  float* const* threshold = nullptr;           // [num_rows / kv_heads] -> [1]; -1: all tokens may stay
};
OpCall call(const ClusterThreshold&);
void run_cpu(const ClusterThreshold&);
void run_cuda(const ClusterThreshold&, CudaContext&);

}  // namespace kvlab
