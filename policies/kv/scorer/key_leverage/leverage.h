#pragma once

#include <cstdint>
#include <vector>

#include "kernels/device/cuda/memory.h"

namespace kvlab {

// out_i = x_i^T (B + sum_j w_j x_j x_j^T)^-1 x_i in double, for the n columns of x. Pointers are device memory.
struct LeverageItem {
  const double* x = nullptr;       // [features, n]
  const double* weight = nullptr;  // [n], null: 1
  double* out = nullptr;           // [n]
  std::int64_t n = 0;
};
// B is the identity, or 1e-6 of the sum's mean diagonal (and 1e-30) times it.
void leverage(const char* name, const std::vector<LeverageItem>& items, std::int32_t features, bool identity, CudaContext& cuda);

}  // namespace kvlab
