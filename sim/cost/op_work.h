#pragma once

#include <cstdint>

#include "kernels/model/linear/linear.h"
#include "sim/cost/model_spec.h"
#include "sim/cost/operations.h"

namespace kvlab {

// By kernels/, on one GPU.
struct OpWork {
  OpId op;
  std::int64_t flops = 0, bytes = 0;
  int times = 1;                         // per layer, or step outside layers
  const WeightFormat* format = nullptr;  // of weights; null: the model's type
  std::int64_t pairs = 0;                // (token, expert) pairs on this GPU
  std::int64_t out = 0, in = 0;          // product's columns and depth; 0: no product
};

struct Work {
  std::int64_t flops = 0, bytes = 0;
};

template <class Shape>
OpWork op_work(OpId op, const Shape& shape, int times = 1) {
  return {op, flops(shape), bytes(shape), times};
}

// y = x w^T with weights in `format`.
inline OpWork linear_work(OpId op, const ModelSpec& m, const WeightFormat& format, std::int64_t tokens, std::int64_t out, std::int64_t in) {
  const LinearShape shape{tokens, out, in, m.activation_bytes(), format.bits};
  return {op, flops(shape), bytes(shape), 1, &format, 0, out, in};
}

}  // namespace kvlab
