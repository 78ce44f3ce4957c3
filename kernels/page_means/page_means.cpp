#include "kernels/page_means/page_means.h"

#include <algorithm>

namespace kvlab {

OpCall call(const PageMeans& a) {
  OpCall c{"page_means", a.kv.num_rows, 0, 0, 0, 0};
  const std::int64_t line = static_cast<std::int64_t>(a.kv.head_dim) * a.kv.kv_bytes;
  for (std::int32_t r = 0; r < a.kv.num_rows; ++r) {
    const std::int64_t begin = a.first_window(r), end = a.windows(r);
    if (begin >= end) continue;
    const std::int64_t read = a.kv.len[r] - begin * a.stride_tokens;
    c.tokens += read;
    c.outputs += end - begin;
    c.bytes += (read + end - begin) * line;
    for (std::int64_t j = begin; j < end; ++j)
      c.flops += std::min<std::int64_t>(a.span_tokens, a.kv.len[r] - j * a.stride_tokens) * a.kv.head_dim;
  }
  return c;
}

}  // namespace kvlab
