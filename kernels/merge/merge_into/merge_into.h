#pragma once

#include <cstdint>

#include "kernels/kv_rows.h"
#include "kernels/ops.h"

namespace kvlab {

// In place: K and V of token c, the target of the set S of m dropped tokens, become
//   kMean          (x_c + sum_S w_i x_i) / (1 + m)
//   kPivot         (x_c + sum_S w_i (x_i + x_c) / 2) / (1 + m)
//   kWeightedMean  (x_c + sum_S w_i x_i) / (1 + sum_S w_i)
// with weights (s: cosine of the two keys)
//   kOne         1
//   kSimilarity  s, for kWeightedMean max(s, 0)
//   kSoftmax     e^s / e: D2O, Wan et al. 2025, section 3.3
//   kNormShare   max(s, 0) |v_i| / (|v_i| + |v_c|): MergingPress of kvpress
//   kGaussian    exp(-|k_c - k_i|^2 / (2 sigma^2)): KVMerger, Wang et al. 2024, eq. 5
//   kMassShare   mass_i / mass_c, 0 if mass_c is 0: our definition
// `values_times_count` then scales V by 1 + m (KVMerger, eq. 6).
struct MergeInto {
  enum class Combine : std::uint8_t { kMean, kPivot, kWeightedMean };
  enum class Weight : std::uint8_t { kOne, kSimilarity, kSoftmax, kNormShare, kGaussian, kMassShare };
  PartedRows rows;
  const std::int32_t* target = nullptr;  // [total_dropped()] place in the kept list, -1: none
  const float* similarity = nullptr;     // [total_dropped()]
  Combine combine = Combine::kMean;
  Weight weight = Weight::kOne;
  float sigma = 5.0F;
  bool keys = true;  // false: only V is merged
  bool values_times_count = false;
  const float* mass = nullptr;  // [rows.kv.total()] attention received, >= 0
};
// As if all were merged.
OpCall call(const MergeInto&);
void run_cpu(const MergeInto&);
void run_cuda(const MergeInto&, CudaContext&);

}  // namespace kvlab
