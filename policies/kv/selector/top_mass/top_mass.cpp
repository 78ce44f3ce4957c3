#include "policies/kv/selector/top_mass/top_mass.h"

namespace kvlab {

std::int64_t estimate_bytes(std::int32_t head_dim, std::int32_t bits) { return (std::int64_t{head_dim} * bits + 7) / 8 + 4; }

OpCall call(const EstimateKeys& a) {
  OpCall c{.op = "estimate_keys", .rows = a.kv.num_rows};
  for (std::int32_t r = 0; r < a.kv.num_rows; ++r)
    if (a.from[r] < a.kv.len[r]) c.tokens += a.kv.len[r] - a.from[r];
  c.outputs = c.tokens;
  c.bytes = c.tokens * (std::int64_t{a.kv.head_dim} * a.kv.kv_bytes + estimate_bytes(a.kv.head_dim, a.bits));
  c.flops = 4 * c.tokens * a.kv.head_dim;
  return c;
}

OpCall call(const TopMass& a) {
  OpCall c{.op = "top_mass", .rows = a.num_rows};
  c.tokens = c.outputs = a.num_rows == 0 ? 0 : a.first[a.num_rows];
  c.bytes = c.tokens * (estimate_bytes(a.head_dim, a.bits) + (a.lists_tokens ? 8 : 4));
  c.flops = c.tokens * a.group * (2LL * a.head_dim + 8);
  return c;
}

}  // namespace kvlab
