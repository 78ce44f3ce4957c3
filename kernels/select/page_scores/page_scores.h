#pragma once

#include <cstdint>
#include <vector>

#include "kernels/device/cuda/memory.h"
#include "kernels/kv_rows.h"
#include "kernels/ops.h"

namespace kvlab {

// A query's match with a page's (chunk's, cluster's) summary, per query head and unit, divided by sqrt(d):
//   kBound  sum_c max(q_c min_c, q_c max_c) (Quest, Tang et al. 2024, algorithm 1)
//   kBlend  sum_c (max_share q_c max_c + (1 - max_share) q_c min_c) (MPCache, Zeng et al. 2025)
//   kDot    sum_c q_c mean_c
// With `softmax`, exp(z_u) / sum_w size_w exp(z_w) over the row's scored units (Squeezed Attention, Hooper et al. 2024, eq. 1). Then
// reduces query heads, unless kEach.
struct PageScores {
  enum class Kind : std::uint8_t { kBound, kBlend, kDot };
  enum class Heads : std::uint8_t { kMean, kMax, kSum, kEach };
  std::int32_t num_rows = 0, kv_heads = 1, group = 1, head_dim = 0, kv_bytes = 2;
  const Queries* queries = nullptr;            // [num_rows / kv_heads], last query only
  const float* const* summaries = nullptr;     // [num_rows] -> [units, 2, head_dim] (kDot: [units, head_dim])
  const std::int32_t* const* sizes = nullptr;  // [num_rows] -> [units]; null: 1
  bool weighs_sizes = false;                   // `sizes` is null on shapes
  const std::int64_t* first = nullptr;         // [num_rows + 1]; none without query
  const std::int32_t* unit = nullptr;          // [first[num_rows]]
  bool lists_units = false;                    // false: units 0, 1, ...
  Kind kind = Kind::kBound;
  Heads heads = Heads::kMax;
  float max_share = 0.6F;
  bool softmax = false;
  float* scores = nullptr;  // [first[num_rows]]; kEach: head h of row r at group * first[r] + h * (units of r)
};
OpCall call(const PageScores&);
void run_cpu(const PageScores&);
void run_cuda(const PageScores&, CudaContext&);

// Products of a row's query heads and unit summaries. Device pointers.
struct UnitRow {
  const float* query = nullptr;        // [group, head_dim]
  const float* summaries = nullptr;    // [units, 2, head_dim], or [units, head_dim]
  const std::int32_t* unit = nullptr;  // [n] null: 0, 1, ...
  float* out = nullptr;                // [n] of head 0
  std::int32_t n = 0;
};

struct UnitScores {
  using Kind = PageScores::Kind;
  using Heads = PageScores::Heads;  // kEach: head h at out + h * n
  std::int32_t group = 1, head_dim = 0;
  Kind kind = Kind::kBound;
  Heads heads = Heads::kMax;
  float max_share = 0.6F, scale = 1.0F;
};

void score_units(const char* name, const UnitScores& a, const std::vector<UnitRow>& rows, CudaContext& cuda);

// exp(z_u) / sum_w size_w exp(z_w) per head, reduced over heads. Device pointers. Heads of -infinity give 0.
struct SoftmaxRow {
  float* z = nullptr;                   // [group, n]
  float* out = nullptr;                 // [n], or [group, n] with kEach
  const std::int32_t* unit = nullptr;   // [n] null: 0, 1, ...
  const std::int32_t* sizes = nullptr;  // by unit; null: 1
  std::int32_t n = 0;
};
void soften_rows(const char* name, const std::vector<SoftmaxRow>& rows, std::int32_t group, UnitScores::Heads heads, CudaContext& cuda);

}  // namespace kvlab
