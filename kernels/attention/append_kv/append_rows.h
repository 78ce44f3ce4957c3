#pragma once

#include <span>

#include "kernels/device/cuda/memory.h"
#include "kernels/kv_rows.h"

namespace kvlab {

// New tokens of one sequence of a batch.
struct AppendedTokens {
  std::int32_t sequence = 0, count = 0, first_position = 0;
  const void* k = nullptr;  // [count, kv_heads, head_dim], on a GPU device memory
  const void* v = nullptr;
};

// Writes the last tokens of rows of KvRows: keys and values, rounded to the type of the rows, positions, and 0 into all words. kv.len
// already counts the new tokens. A sequence is listed once. On the CPU both types are kF32.
struct AppendRows {
  KvRows kv;
  std::span<const AppendedTokens> news;   // CPU memory
  ElementType type = ElementType::kBf16;  // of the new keys and values
  std::int64_t token_stride = 0;          // elements from one new token to the next; 0: kv_heads * head_dim
};
void run_cpu(const AppendRows& a);
void run_cuda(const AppendRows& a, CudaContext& cuda);

}  // namespace kvlab
