#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "base/ceil_div.h"
#include "kernels/device/cuda/memory.h"
#include "kernels/element.h"

namespace kvlab {

// c = a * b (+ bias), row-major, fp32 with one rounding. c overlaps no operand. batch > 1: matrices at equal distances.
struct MatrixProduct {
  const void* a = nullptr;     // [m, k]
  const void* b = nullptr;     // [n, k] if b_transposed, else [k, n]
  void* c = nullptr;           // [m, n]
  const void* bias = nullptr;  // [n]; may be null
  std::int64_t m = 0, n = 0, k = 0;
  bool b_transposed = true;
  std::int64_t a_row = 0, b_row = 0, c_row = 0;  // row strides in elements; 0: dense
  std::int64_t batch = 1;
  std::int64_t a_step = 0, b_step = 0, c_step = 0;  // elements between products; 0: one matrix
  ElementType type = ElementType::kBf16;
  bool c_is_f32 = false;  // without a bias
};

// For the choice of an algorithm: exact up to 16, multiples of 8 up to 128, then eight per doubling.
constexpr std::int64_t algorithm_rows(std::int64_t m) {
  if (m <= 16) return m;
  const auto below = static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(m - 1)));
  const std::int64_t step = std::max<std::int64_t>(8, below / 8);
  return round_up(m, step);
}

// cuBLASLt chooses for algorithm_rows(m) rows, or m if that does not fit or batch > 1. Deterministic. Throws CudaError without an
// algorithm, or for bf16 before compute capability 8.0.
void multiply(const MatrixProduct& p, CudaContext& cuda);

}  // namespace kvlab
