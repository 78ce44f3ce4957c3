#pragma once

#include <vector>

#include "calibrate/cases/op_case.h"
#include "kernels/kv_rows.h"

namespace kvlab {

// One length, pages in random order.
struct RowsSpec {
  std::int64_t batch = 1, kv_heads = 1, group = 1, len = 0, head_dim = 0;
};
inline const Axes kRowAxes{{"batch", "b"}, {"len", "n"}, {"kv_heads", "kv"}, {"head_dim", "d"}};
// "batch" and "group" default to 1.
RowsSpec rows_spec(const Shape& shape);
KvRows paged_rows(Buffers& buffers, const RowsSpec& spec);
ListedTokens all_tokens(Buffers& buffers, const Shape& shape);

inline const Axes kDecodeAxes{{"batch", "b"}, {"len", "n"}, {"q_heads", "q"}, {"kv_heads", "kv"}, {"head_dim", "d"}};

// [count, q_heads, head_dim], float32.
Queries* queries_at_end(Buffers& buffers, const KvRows& kv, std::int32_t count);

// Keys or values of a row, [len, head_dim].
std::vector<float> row_vectors(TimedDevice& device, const KvRows& kv, std::int64_t row, bool values);

// In CPU memory.
std::int64_t* equal_rows(Buffers& buffers, std::int64_t rows, std::int64_t each);
std::int32_t* equal_counts(Buffers& buffers, std::int64_t rows, std::int64_t count);

inline double dot(const float* x, const float* y, std::int64_t n) {
  double sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(y[i]);
  return sum;
}

}  // namespace kvlab
