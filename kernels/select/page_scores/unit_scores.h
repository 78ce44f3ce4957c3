#pragma once

#include <cstdint>
#include <vector>

#include "kernels/device/cuda/memory.h"

namespace kvlab {

// Products of a row's query heads and unit summaries. Device pointers.
struct UnitRow {
  const float* query = nullptr;        // [group, head_dim]
  const float* summaries = nullptr;    // [units, 2, head_dim], or [units, head_dim]
  const std::int32_t* unit = nullptr;  // [n] null: 0, 1, ...
  float* out = nullptr;                // [n] of head 0
  std::int32_t n = 0;
};

struct UnitScores {
  enum class Kind : std::uint8_t { kBound, kBlend, kDot };
  enum class Heads : std::uint8_t { kMean, kMax, kSum, kEach };  // kEach: head h at out + h * n
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
