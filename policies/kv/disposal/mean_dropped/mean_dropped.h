#pragma once

#include <cstdint>

#include "kernels/ops.h"
#include "kernels/parted_rows.h"

namespace kvlab {

// Running means of the keys and values of the tokens that left a row: with n = before[r] tokens in them already and the set D dropped
// now, mean = (n mean + sum_D x) / (n + |D|). A row that drops nothing keeps its means (RazorAttention, Tang et al. 2024,
// arXiv:2407.15891, eq. 3).
struct MeanDropped {
  PartedRows rows;
  const std::int32_t* line = nullptr;          // [num_rows] row r's means are lines line[r]
  const std::int32_t* before = nullptr;        // [num_rows]
  float *k_mean = nullptr, *v_mean = nullptr;  // [*, head_dim] in and out
};
// Dropped keys and values are read, the means read and written; one addition per element and two operations per element of a mean.
OpCall call(const MeanDropped&);
void run_cpu(const MeanDropped&);
void run_cuda(const MeanDropped&, CudaContext&);

}  // namespace kvlab
