#include "policies/kv/selector/low_bit_copy/low_bit_copy.h"

#include <algorithm>
#include <cmath>

#include "base/ceil_div.h"
#include "base/half.h"
#include "base/parallel.h"

namespace kvlab {

namespace {

// Decodes x[0], x[stride], ... of one group.
void code_group(const LowBitCode& code, float* x, std::int64_t n, std::int64_t stride) {
  float low = x[0], high = x[0];
  for (std::int64_t i = 1; i < n; ++i) low = std::min(low, x[i * stride]), high = std::max(high, x[i * stride]);
  const float levels = static_cast<float>((1 << code.bits) - 1);
  const float zero = round_to_half(code.bits == 1 ? 0.75F * low + 0.25F * high : low);
  const float scale = round_to_half(code.bits == 1 ? 0.5F * (high - low) : (high - low) / levels);
  for (std::int64_t i = 0; i < n; ++i) {
    const float c = scale > 0 ? std::clamp(std::nearbyint((x[i * stride] - zero) / scale), 0.0F, levels) : 0.0F;
    x[i * stride] = zero + scale * c;
  }
}

}  // namespace

std::int64_t LowBitCode::bytes(std::int64_t tokens, std::int32_t head_dim) const {
  const std::int64_t k_groups = ceil_div(tokens, group) * head_dim;
  const std::int64_t v_groups = tokens * ceil_div(head_dim, group);
  return 2 * ((tokens * head_dim * bits + 7) / 8) + 4 * (k_groups + v_groups);
}

OpCall call(const LowBitCopy& a) {
  OpCall c{.op = "low_bit_copy", .rows = a.kv.num_rows};
  for (std::int32_t r = 0; r < a.kv.num_rows; ++r) {
    const std::int64_t n = a.covered[r] - a.coded[r];
    c.tokens += n;
    c.outputs += n;
    c.bytes += 2 * n * a.kv.head_dim * a.kv.kv_bytes + a.code.bytes(n, a.kv.head_dim);
    c.flops += 8 * n * a.kv.head_dim;
  }
  return c;
}
KVLAB_WITHOUT_CUDA(LowBitCopy)

void run_cpu(const LowBitCopy& a) {
  const std::int64_t d = a.kv.head_dim;
  for_each_in_parallel(a.kv.num_rows, [&](std::int64_t row) {
    const auto r = static_cast<std::int32_t>(row);
    for (std::int32_t i = 0; i < a.kv.len[r]; ++i) {
      std::copy_n(a.kv.key(r, i), d, a.out.key(r, i));
      std::copy_n(a.kv.value(r, i), d, a.out.value(r, i));
      a.out.position[a.out.slot(r, i)] = a.kv.position[a.kv.slot(r, i)];
    }
    for (std::int32_t i = 0; i < a.covered[r]; i += a.code.group)  // slots of a row of `out` are consecutive
      for (std::int64_t c = 0; c < d; ++c) code_group(a.code, a.out.key(r, i) + c, a.code.group, d);
    for (std::int32_t i = 0; i < a.covered[r]; ++i)
      for (std::int64_t c = 0; c < d; c += a.code.group)
        code_group(a.code, a.out.value(r, i) + c, std::min<std::int64_t>(a.code.group, d - c), 1);
  });
}

OpCall call(const LowBitAttention& a) {
  OpCall c = call(a.stats);
  c.op = "low_bit_attention";
  const KvRows& kv = a.stats.kv;
  for (std::int32_t r = 0; r < kv.num_rows; ++r)
    if (a.stats.queries[kv.sequence(r)].count > 0)
      c.bytes += a.code.bytes(a.covered[r], kv.head_dim) / 2 - static_cast<std::int64_t>(a.covered[r]) * kv.head_dim * kv.kv_bytes;
  return c;
}
KVLAB_WITHOUT_CUDA(LowBitAttention)

void run_cpu(const LowBitAttention& a) { run_cpu(a.stats); }

}  // namespace kvlab
