#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "base/ceil_div.h"
#include "kernels/device/cuda/memory.h"
#include "kernels/element.h"

namespace kvlab {

// c = a * b (+ bias), row-major, products and sums in fp32, one rounding at the end. All arrays are of `type` (c optionally f32) in device
// memory. With batch > 1, runs `batch` products with matrices at equal distances. c overlaps no operand.
struct MatrixProduct {
  const void* a = nullptr;     // [m, k]
  const void* b = nullptr;     // [n, k] if b_transposed, else [k, n]
  void* c = nullptr;           // [m, n]
  const void* bias = nullptr;  // [n]; may be null
  std::int64_t m = 0, n = 0, k = 0;
  bool b_transposed = true;
  std::int64_t a_row = 0, b_row = 0, c_row = 0;  // elements from row to row; 0: the rows are dense
  std::int64_t batch = 1;
  std::int64_t a_step = 0, b_step = 0, c_step = 0;  // elements from product to product; a step of 0 uses one matrix in all
  ElementType type = ElementType::kBf16;
  bool c_is_f32 = false;  // without a bias
};

// Row count whose algorithm is used for m rows: batches change their tokens from step to step, and choosing an algorithm takes the library
// up to a millisecond. Equal to m up to 16, where single rows decide between kinds of kernels; then multiples of 8, the rows of the
// smallest tiles, and beyond 128 eight per doubling: at most an eighth more rows, 78 values up to 8,192.
constexpr std::int64_t algorithm_rows(std::int64_t m) {
  if (m <= 16) return m;
  const auto below = static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(m - 1)));
  const std::int64_t step = std::max<std::int64_t>(8, below / 8);
  return round_up(m, step);
}

// Uses cuBLASLt. Its heuristics choose the algorithm for algorithm_rows(m) rows, which is kept for all products of that shape; if it does
// not support m rows, or batch > 1, they choose for m rows. Deterministic: a product gives the same bits every time, independent of earlier
// products. Throws CudaError if the library has no algorithm, and for bf16 before compute capability 8.0.
void multiply(const MatrixProduct& p, CudaContext& cuda);

}  // namespace kvlab
