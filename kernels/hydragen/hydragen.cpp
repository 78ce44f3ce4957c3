#include <cmath>

#include "kernels/hydragen/hydragen_cuda.h"

namespace kvlab {

namespace {

std::int64_t hydragen_sequences(const DeviceHydragen& a) { return a.suffix.kv.num_rows / a.suffix.kv.kv_heads; }

}  // namespace

DevicePrefill prefix_part(const DeviceHydragen& a) {
  const PagedDecode& s = a.suffix;
  DevicePrefill p;
  p.q = s.q, p.k = a.prefix_k, p.v = a.prefix_v;
  p.query_first = a.sequence_first, p.kv_before = a.prefix_len, p.page_begin = a.prefix_page_begin, p.page = a.prefix_page;
  p.prompts = a.prefixes, p.tokens = static_cast<std::int32_t>(hydragen_sequences(a)), p.longest_kv = a.longest_prefix;
  p.q_heads = s.q_heads, p.kv_heads = s.kv.kv_heads, p.head_dim = s.kv.head_dim, p.page_tokens = a.prefix_page_tokens;
  p.causal = false, p.type = s.kv.type;
  p.scale = s.scale == 0 ? 1.0F / std::sqrt(static_cast<float>(s.kv.head_dim)) : s.scale;
  return p;
}

// Queries are read twice; two parts of fp32 with their log sums are written and read.
std::int64_t bytes(const DeviceHydragen& a, std::int64_t prefix_tokens) {
  const std::int64_t rows = hydragen_sequences(a) * a.suffix.q_heads, number = element_bytes(a.suffix.kv.type);
  return bytes(a.suffix) + 2 * prefix_tokens * a.suffix.kv.kv_heads * a.suffix.kv.head_dim * number + rows * a.suffix.kv.head_dim * number +
         4 * rows * 4 * (a.suffix.kv.head_dim + 1);
}

std::int64_t flops(const DeviceHydragen& a, std::int64_t pairs) {
  return flops(a.suffix) + 4 * pairs * a.suffix.q_heads * a.suffix.kv.head_dim;
}

}  // namespace kvlab
