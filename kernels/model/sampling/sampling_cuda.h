#pragma once

#include "kernels/device/cuda/memory.h"
#include "kernels/element.h"
#include "kernels/model/sampling/sampling.h"

namespace kvlab {

// The same draws as Sampling.
struct DeviceSampling {
  const void* logits = nullptr;        // row r begins at r * stride
  const float* temperature = nullptr;  // [rows]; 0: greedy. Null: all greedy
  const std::uint64_t* key = nullptr;  // [rows] sampling_key(...); not read if greedy
  std::int32_t* token = nullptr;       // [rows] out
  std::int64_t rows = 0, vocabulary = 0;
  std::int64_t stride = 0;  // 0: vocabulary
  ElementType type = ElementType::kBf16;
};

constexpr SamplingShape shape(const DeviceSampling& a) { return {a.rows, a.vocabulary, element_bytes(a.type)}; }
void run_cuda(const DeviceSampling& a, CudaContext& cuda);

}  // namespace kvlab
