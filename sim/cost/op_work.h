#pragma once

#include <cstdint>

#include "kernels/model/linear/linear.h"
#include "sim/cost/model_spec.h"
#include "sim/cost/operations.h"

namespace kvlab {

// FLOPs and HBM bytes of an operation of a step on one GPU, by the formulas of kernels/.
struct OpWork {
  OpId op;
  std::int64_t flops = 0, bytes = 0;
  int times = 1;                         // in a layer, or in a step for operations outside layers
  const WeightFormat* format = nullptr;  // of the model: the types it is computed in; null: the model's type
  std::int64_t out = 0, in = 0;          // of a matrix product: columns of its result, and the depth of its sums; 0: it is none
};

struct Work {
  std::int64_t flops = 0, bytes = 0;
};

template <class Shape>
OpWork op_work(OpId op, const Shape& shape, int times = 1) {
  return {op, flops(shape), bytes(shape), times};
}

// y = x w^T with weights of that format.
inline OpWork linear_work(OpId op, const ModelSpec& m, const WeightFormat& format, std::int64_t tokens, std::int64_t out, std::int64_t in) {
  const LinearShape shape{tokens, out, in, m.activation_bytes(), format.bits};
  return {op, flops(shape), bytes(shape), 1, &format, out, in};
}

}  // namespace kvlab
