#pragma once

#include <span>

#include "kernels/device/cuda/memory.h"
#include "kernels/kv_rows.h"

namespace kvlab {

struct AppendedTokens {
  std::int32_t sequence = 0, count = 0, first_position = 0;
  const void* k = nullptr;  // [count, kv_heads, head_dim]; device memory on a GPU
  const void* v = nullptr;
};

// Writes K, V (rounded), positions, and 0 into all words; kv.len counts them. Each sequence occurs once. On the CPU both types are kF32.
struct AppendRows {
  KvRows kv;
  std::span<const AppendedTokens> news;  // CPU memory
  ElementType type = ElementType::kBf16;
  std::int64_t token_stride = 0;  // in elements; 0: kv_heads * head_dim
};
void run_cpu(const AppendRows& a);
void run_cuda(const AppendRows& a, CudaContext& cuda);

}  // namespace kvlab
