#pragma once

#include <cstdint>

#include "kernels/kv_rows.h"
#include "kernels/ops.h"

// Clusters of a prompt's keys, for Squeezed Attention (Hooper et al. 2024, arXiv:2411.09688).
namespace kvlab {

// k-means by the angle between keys: Lloyd's rounds on keys of length 1, started from keys spread evenly over the row. A cluster that lost
// its keys keeps its direction. Ties go to the lower cluster. Centroids are means of the unscaled keys, 0 for an empty cluster.
struct ClusterKeys {
  KvRows kv;
  const std::int32_t* tokens = nullptr;    // [num_rows] first tokens of the row that take part; 0: the row is unchanged
  const std::int32_t* clusters = nullptr;  // [num_rows] 1 <= clusters <= tokens where tokens > 0
  std::int32_t rounds = 10;
  std::int32_t* const* cluster_of = nullptr;  // [num_rows] -> [tokens]
  float* const* centroids = nullptr;          // [num_rows] -> [clusters, head_dim]
  std::int32_t* const* sizes = nullptr;       // [num_rows] -> [clusters]
};
// Keys are read once per round, twice more to scale them and to average; 2 FLOPs per channel, key and cluster in a round.
OpCall call(const ClusterKeys&);
void run_cpu(const ClusterKeys&);
void run_cuda(const ClusterKeys&, CudaContext&);

// The cluster weight that `keep_frac` of the clustered tokens exceed, over all rows of a sequence and all its queries: weights as
// PageScores gives them with softmax and sizes, mean over the row's query heads.
struct ClusterThreshold {
  std::int32_t num_rows = 0, kv_heads = 1, group = 1, head_dim = 0, kv_bytes = 2;
  const Queries* queries = nullptr;            // [num_rows / kv_heads]; none: the sequence's threshold is unchanged
  const std::int32_t* clusters = nullptr;      // [num_rows]
  const float* const* centroids = nullptr;     // [num_rows] -> [clusters, head_dim]
  const std::int32_t* const* sizes = nullptr;  // [num_rows] -> [clusters]
  const double* keep_frac = nullptr;           // [num_rows / kv_heads]
  float* const* threshold = nullptr;           // [num_rows / kv_heads] -> [1]; -1 where all tokens may stay
};
// Centroids are read once, queries once; the weights are sorted.
OpCall call(const ClusterThreshold&);
void run_cpu(const ClusterThreshold&);
void run_cuda(const ClusterThreshold&, CudaContext&);

// Tokens whose cluster weighs more than the sequence's threshold, ascending.
struct ClusterTokens {
  std::int32_t num_rows = 0, kv_heads = 1;
  const std::int64_t* score_first = nullptr;        // [num_rows + 1] clusters
  const float* scores = nullptr;                    // their weights
  const float* const* threshold = nullptr;          // [num_rows / kv_heads] -> [1]
  const std::int32_t* const* cluster_of = nullptr;  // [num_rows] -> tokens
  const std::int64_t* first = nullptr;              // [num_rows + 1] clustered tokens: offsets of the lists
  std::int32_t* token = nullptr;                    // out
  std::int32_t* count = nullptr;                    // [num_rows] out
};
// Every token's cluster is read, counted as if every token were written.
OpCall call(const ClusterTokens&);
void run_cpu(const ClusterTokens&);
void run_cuda(const ClusterTokens&, CudaContext&);  // counts are in CPU memory: waits for the stream

}  // namespace kvlab
