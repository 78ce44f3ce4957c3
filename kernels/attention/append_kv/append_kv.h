#pragma once

#include <cstdint>
#include <span>

#include "kernels/device/cuda/memory.h"
#include "kernels/kv_rows.h"
#include "kernels/paged_kv.h"

namespace kvlab {

// New K and V [tokens, kv_heads, head_dim] and int64 slot numbers.
struct AppendKvShape {
  std::int64_t tokens = 0, kv_heads = 0, head_dim = 0;
  std::int64_t activation_bytes = 2, kv_bytes = 2;  // per element, before and in the cache
};

constexpr std::int64_t bytes(const AppendKvShape& s) {
  return s.tokens * (2 * s.kv_heads * s.head_dim * (s.activation_bytes + s.kv_bytes) + 8);
}
constexpr std::int64_t flops(const AppendKvShape&) { return 0; }

// Appends encoded K and V to allocated pages; kv.len counts them. int8 and low-bit codes equal GroupCodec's bit for bit; a kivi page is
// encoded when its last token leaves the window. fp8: divided by the scales, saturated.
struct AppendKv {
  PagedKv kv;
  const void* k = nullptr;  // [tokens, kv_heads, head_dim] of kv.type, by sequence
  const void* v = nullptr;
  std::int64_t token_stride = 0;              // in elements, a multiple of 8; 0: kv_heads * head_dim
  const std::int32_t* first_token = nullptr;  // [sequences + 1]; null: one each
  std::int64_t tokens = 0;
  std::int32_t most_new = 1;         // upper bound per sequence
  std::int32_t* position = nullptr;  // [slots of all pages] out: places in rows; f16 and bf16
};

// kivi reads new tokens once more, from the window.
inline std::int64_t bytes(const AppendKv& a) {
  const std::int64_t number = 2 * a.kv.head_dim * element_bytes(a.kv.type);  // K and V of a token and head
  const std::int32_t page = is_kivi(a.kv.format) ? fixed_page_tokens(a.kv.format) : 16;
  const std::int64_t stored = 2 * page_bytes(a.kv.format, a.kv.head_dim, page) / page;
  return a.tokens * a.kv.kv_heads * (number + stored + (is_kivi(a.kv.format) ? 2 * number : 0) + 12);
}
void run_cuda(const AppendKv& a, CudaContext& cuda);

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
