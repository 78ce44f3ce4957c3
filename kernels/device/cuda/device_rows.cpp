#include "kernels/device/cuda/device_rows.h"

#include <algorithm>

namespace kvlab {

DeviceRows on_device(const KvRows& kv, CudaContext& cuda) {
  DeviceRows d{kv.num_rows, kv.kv_heads, kv.group, kv.head_dim, kv.page_tokens, kv.num_words};
  d.pool_tokens = kv.pool_tokens, d.total = kv.total();
  d.k = kv.k, d.v = kv.v, d.position = kv.position, d.words = kv.words;
  std::int64_t pages = 0;
  for (std::int32_t r = 0; r < kv.num_rows; ++r) {
    d.longest = std::max(d.longest, kv.len[r]);
    if (kv.len[r] > 0) pages = std::max<std::int64_t>(pages, kv.page_begin[r] + (kv.len[r] - 1) / kv.page_tokens + 1);
  }
  d.len = cuda.upload(kv.len, kv.num_rows);
  d.first = cuda.upload(kv.first, kv.num_rows + 1);
  d.page_begin = cuda.upload(kv.page_begin, kv.num_rows);
  d.page = cuda.upload(kv.page, pages);
  return d;
}

}  // namespace kvlab
