#pragma once

#include <cstdint>

#include "kernels/kv_rows.h"
#include "kernels/ops.h"

namespace kvlab {

// One set for all KV heads of a sequence: the `important[s]` tokens of largest mean score, and `representatives[s]` of the others.
// A token's signature has one bit per head: whether it is among the head's `important[s]` best. The others are sorted by the
// Hamming distance of their signature to an anchor (ties by index) and taken evenly spaced from that order. Scores become 2, 1
// (representative) or 0; infinite ones stay. All rows of a sequence have the same length. KVCrush, Jha et al. 2025.
struct Representatives {
  enum class Anchor : std::uint8_t { kMajority, kZeros, kOnes, kAlternating, kRandom };
  KvRows kv;
  const std::int32_t *important = nullptr, *representatives = nullptr;  // [num_sequences], together at most the row's length
  Anchor anchor = Anchor::kMajority;
  std::uint64_t seed = 0;
  float* scores = nullptr;  // [kv.total()]
};
OpCall call(const Representatives&);
void run_cpu(const Representatives&);
void run_cuda(const Representatives&, CudaContext&);

}  // namespace kvlab
