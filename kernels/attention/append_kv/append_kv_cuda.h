#pragma once

#include "kernels/device/cuda/memory.h"
#include "kernels/paged_kv.h"

namespace kvlab {

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

}  // namespace kvlab
