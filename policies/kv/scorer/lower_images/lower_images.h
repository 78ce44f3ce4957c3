#pragma once

#include <cstdint>

#include "kernels/kv_rows.h"
#include "kernels/ops.h"

namespace kvlab {

// Tokens of one id, the token id that a tokenizer writes for each image, rank below all others of their row: their scores are lowered by
// the range of the row's finite scores and 1. The order among them stays. LOOK-M, Wan et al. 2024, section 3.2, which adds a large negative
// number.
struct LowerImages {
  KvRows kv;
  const std::int32_t* const* ids = nullptr;  // [kv.num_sequences()], each by position
  std::int32_t image_id = 0;
  float* scores = nullptr;  // [kv.total()]
};
// Scores are read twice and written once, positions and ids read once.
OpCall call(const LowerImages&);
void run_cpu(const LowerImages&);

}  // namespace kvlab
