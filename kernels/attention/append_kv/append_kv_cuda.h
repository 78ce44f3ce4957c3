#pragma once

#include "kernels/attention/append_kv/append_kv.h"
#include "kernels/device/cuda/memory.h"
#include "kernels/ops.h"
#include "kernels/paged_kv.h"

namespace kvlab {

// Appends new keys and values to the rows of a paged cache, encoded as its format says (PagedKv). kv.len already counts the new tokens, and
// the pages are allocated. The token and channel groups, zeros and scales of int8 and low-bit formats are those of GroupCodec, bit for bit;
// a page of kivi is encoded when its last token leaves the window. fp8: divided by k_scale and v_scale, saturated. Device memory.
struct AppendKv {
  PagedKv kv;
  const void* k = nullptr;  // [tokens, kv_heads, head_dim] of kv.type, sequence by sequence
  const void* v = nullptr;
  std::int64_t token_stride = 0;              // elements from one token to the next, a multiple of 8; 0: kv_heads * head_dim
  const std::int32_t* first_token = nullptr;  // [sequences + 1] where a sequence's new tokens start; null: one token each
  std::int64_t tokens = 0;
  std::int32_t most_new = 1;         // most tokens of one sequence, or an upper bound
  std::int32_t* position = nullptr;  // [slots of all pages] also receives each new token's place in its row; f16 and bf16 only
};

AppendKvShape shape(const AppendKv& a);
// New tokens are read and written once; kivi also reads each once from the window when it is encoded.
std::int64_t bytes(const AppendKv& a);
OpCall call(const AppendKv& a);
void run_cuda(const AppendKv& a, CudaContext& cuda);

}  // namespace kvlab
