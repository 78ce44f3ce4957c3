#include "kernels/attention/append_kv/append_kv_cuda.h"

namespace kvlab {

AppendKvShape shape(const AppendKv& a) {
  return {a.tokens, a.kv.kv_heads, a.kv.head_dim, element_bytes(a.kv.type), bits_of(a.kv.format) / 8};
}

std::int64_t bytes(const AppendKv& a) {
  const std::int64_t number = 2 * a.kv.head_dim * element_bytes(a.kv.type);  // K and V of a token and head
  const std::int32_t page = is_kivi(a.kv.format) ? fixed_page_tokens(a.kv.format) : 16;
  const std::int64_t stored = 2 * page_bytes(a.kv.format, a.kv.head_dim, page) / page;
  return a.tokens * a.kv.kv_heads * (number + stored + (is_kivi(a.kv.format) ? 2 * number : 0) + 12);
}

OpCall call(const AppendKv& a) {
  return {.op = "append_kv",
          .rows = a.tokens * a.kv.kv_heads,
          .tokens = a.tokens * a.kv.kv_heads,
          .outputs = a.tokens * a.kv.kv_heads,
          .bytes = bytes(a)};
}
KVLAB_WITHOUT_CUDA(AppendKv)

}  // namespace kvlab
