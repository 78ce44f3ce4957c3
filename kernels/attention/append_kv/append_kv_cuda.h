#pragma once

#include "kernels/attention/append_kv/append_kv.h"
#include "kernels/device/cuda/memory.h"
#include "kernels/ops.h"
#include "kernels/paged_kv.h"

namespace kvlab {

// Appends encoded K and V to a paged cache; kv.len counts them and pages are allocated. int8 and low-bit encodings equal GroupCodec's bit
// for bit; a kivi page is encoded when its last token leaves the window. fp8: divided by k_scale and v_scale, saturated.
struct AppendKv {
  PagedKv kv;
  const void* k = nullptr;  // [tokens, kv_heads, head_dim] of kv.type, by sequence
  const void* v = nullptr;
  std::int64_t token_stride = 0;              // in elements, a multiple of 8; 0: kv_heads * head_dim
  const std::int32_t* first_token = nullptr;  // [sequences + 1]; null: one each
  std::int64_t tokens = 0;
  std::int32_t most_new = 1;         // upper bound per sequence
  std::int32_t* position = nullptr;  // [slots of all pages] out: places in rows; f16 and bf16 only
};

AppendKvShape shape(const AppendKv& a);
// kivi reads each new token once more, from the window.
std::int64_t bytes(const AppendKv& a);
OpCall call(const AppendKv& a);
void run_cuda(const AppendKv& a, CudaContext& cuda);

}  // namespace kvlab
