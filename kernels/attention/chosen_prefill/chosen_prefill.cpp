#include "kernels/attention/chosen_prefill/chosen_prefill.h"

#include "kernels/kv_rows.h"

namespace kvlab {

std::int64_t chosen_pairs(const ChosenPrefill& a) {
  std::int64_t pairs = 0;
  for (std::int64_t l = 0; l < a.num_lists && a.stride == 0; ++l) pairs += a.q_heads / a.num_lists * causal_pairs(a.queries[l], a.keys(l));
  for (std::int64_t t = 0; a.stride > 0 && t < a.num_queries(0); ++t) {
    const std::int64_t seen = a.last_key(0, t) + 1;
    pairs += a.q_heads * (a.window == 0 ? seen : std::min(a.window, seen));
  }
  return pairs;
}

namespace {

// All keys that the last query sees are read once, outputs read and written.
OpCall cost_of_correction(const ChosenPrefill& a) {
  const std::int64_t rows = a.num_queries(0), width = a.q_heads * a.head_dim, pairs = chosen_pairs(a);
  const std::int64_t seen = a.new_tokens == 0 ? 0 : a.window == 0 ? a.end() : std::min(a.window, a.end());
  return {.op = "delta_rows",
          .rows = a.kv_heads,
          .tokens = a.kv_heads * (pairs / a.q_heads),
          .outputs = rows,
          .bytes = 2 * a.kv_heads * seen * a.head_dim * a.kv_bytes + (2 * rows + 2 * a.corrected()) * width * a.activation_bytes,
          .flops = 4 * pairs * a.head_dim + a.corrected() * width};
}

}  // namespace

OpCall call(const ChosenPrefill& a) {
  if (a.stride > 0) return cost_of_correction(a);
  OpCall c{.op = "chosen_prefill", .rows = a.kv_heads};
  for (std::int64_t l = 0; l < a.num_lists; ++l) {
    const std::int64_t kv_heads = a.kv_heads / a.num_lists, heads = a.q_heads / a.num_lists;
    c.tokens += kv_heads * a.keys(l);
    c.bytes += a.head_dim * (2 * kv_heads * a.keys(l) * a.kv_bytes + heads * (a.queries[l] + a.new_tokens) * a.activation_bytes);
  }
  c.outputs = a.new_tokens;
  c.flops = 4 * a.head_dim * chosen_pairs(a);
  return c;
}
KVLAB_WITHOUT_CUDA(ChosenPrefill)

}  // namespace kvlab
