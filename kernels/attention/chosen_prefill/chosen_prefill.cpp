#include "kernels/attention/chosen_prefill/chosen_prefill.h"

#include "kernels/kv_rows.h"

namespace kvlab {

std::int64_t chosen_pairs(const ChosenPrefill& a) {
  std::int64_t pairs = 0;
  for (std::int64_t l = 0; l < a.num_lists; ++l) pairs += a.q_heads / a.num_lists * causal_pairs(a.queries[l], a.keys(l));
  return pairs;
}

OpCall call(const ChosenPrefill& a) {
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
