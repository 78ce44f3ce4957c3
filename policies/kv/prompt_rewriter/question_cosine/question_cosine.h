#pragma once

#include <cstdint>
#include <span>

#include "kernels/ops.h"

namespace kvlab {

// out[i] = max over the question's tokens t of the mean over the kinds of vectors of cos(x_i, x_t); cosines with a zero vector are 0.
struct QuestionCosine {
  std::int32_t tokens = 0, question_begin = 0, head_dim = 0;
  std::span<const float* const> vectors;  // each [tokens, head_dim]
  float* out = nullptr;                   // [tokens]
};
// Vectors are read once, as float32.
OpCall call(const QuestionCosine&);
void run_cpu(const QuestionCosine&);
void run_cuda(const QuestionCosine&, CudaContext&);  // `vectors` is a CPU array of device pointers

}  // namespace kvlab
