#include "sim/cost/step_work.h"

#include <algorithm>

#include "kernels/attention/append_kv/append_kv.h"
#include "kernels/model/embedding/embedding.h"
#include "kernels/model/linear/linear.h"
#include "kernels/model/moe_experts/moe_experts.h"
#include "kernels/model/rmsnorm/rmsnorm.h"
#include "kernels/model/rope/rope.h"
#include "kernels/model/sampling/sampling.h"
#include "kernels/model/silu_mul/silu_mul.h"
#include "kernels/storage/compact/compact.h"

namespace kvlab {

namespace {

template <class Shape>
OpWork op(OpId which, const Shape& shape, int times = 1) {
  return {which, flops(shape), bytes(shape), times};
}

// y = x w^T with weights of that format.
OpWork linear(OpId which, const ModelSpec& m, const WeightFormat& format, std::int64_t tokens, std::int64_t out, std::int64_t in) {
  const LinearShape shape{tokens, out, in, m.activation_bytes(), format.bits};
  return {which, flops(shape), bytes(shape), 1, 1, &format};
}

// One rank's share of the heads; KV heads are repeated when there are fewer of them than ranks.
struct Heads {
  std::int64_t q, kv;
};
Heads heads(const ModelSpec& m, const Parallel& p) { return {m.q_heads / p.tp, std::max<std::int64_t>(1, m.kv_heads / p.tp)}; }

void mlp_ops(const ModelSpec& m, std::int64_t width, std::int64_t t, std::vector<OpWork>& ops) {
  const std::int64_t a = m.activation_bytes();
  ops.push_back(linear(OpId::kGateUpProj, m, m.mlp_weights, t, (m.gated_mlp ? 2 : 1) * width, m.hidden));
  ops.push_back(op(OpId::kActFn, SiluMulShape{t, width, a, m.gated_mlp}));
  ops.push_back(linear(OpId::kDownProj, m, m.mlp_weights, t, m.hidden, width));
}

void moe_ops(const ModelSpec& m, const Parallel& p, std::int64_t tokens, std::int64_t own_tokens, std::vector<OpWork>& ops) {
  ops.push_back(op(OpId::kRouter,
                   LinearShape{own_tokens, m.experts, m.hidden, m.activation_bytes(), 8.0 * static_cast<double>(m.activation_bytes())}));
  if (p.dp == 1) ops.push_back(experts_op(m, p, tokens));
  if (m.shared_intermediate > 0) mlp_ops(m, ceil_div(m.shared_intermediate, p.tp), own_tokens, ops);
}

}  // namespace

OpWork experts_op(const ModelSpec& m, const Parallel& p, std::int64_t tokens) {
  MoeExpertsShape experts{
      tokens, m.hidden, m.moe_intermediate, m.experts, m.experts_per_token, p.ep, m.activation_bytes(), m.expert_weights.bits, m.gated_mlp};
  if (p.ep == 1) experts.intermediate = ceil_div(m.moe_intermediate, p.expert_ranks());
  OpWork work = op(OpId::kMoe, experts);
  work.format = &m.expert_weights;
  return work;
}

void layer_ops(const ModelSpec& m, const Parallel& p, std::int64_t tokens, std::vector<OpWork>& ops) {
  const std::int64_t t = ceil_div(tokens, p.data_ranks()), a = m.activation_bytes();
  const Heads h = heads(m, p);
  ops.push_back(op(OpId::kLayernorm, RmsNormShape{t, m.hidden, a, true}, static_cast<int>(m.norms)));
  ops.push_back(linear(OpId::kQkvProj, m, m.attention_weights, t, (h.q + 2 * h.kv) * m.head_dim, m.hidden));
  if (m.qk_norm) ops.push_back(op(OpId::kQkNorm, RmsNormShape{t, (h.q + h.kv) * m.head_dim, a, false}));
  if (!m.learned_positions) ops.push_back(op(OpId::kRotaryEmb, RopeShape{t, h.q + h.kv, m.head_dim, a}));
  ops.push_back(op(OpId::kAppendKv, AppendKvShape{t, h.kv, m.head_dim, a, bits(m.kv_dtype) / 8}));
  ops.push_back(linear(OpId::kOProj, m, m.attention_weights, t, m.hidden, h.q * m.head_dim));
  const double routed = m.expert_share();
  const auto add = [&](double share, auto make) {
    const std::size_t before = ops.size();
    if (share > 0) make();
    for (std::size_t i = before; i < ops.size(); ++i) ops[i].share = share;
  };
  add(routed, [&] { moe_ops(m, p, tokens, t, ops); });
  add(1 - routed, [&] { mlp_ops(m, ceil_div(m.intermediate, p.tp), t, ops); });
}

void step_ops(const ModelSpec& m, const Parallel& p, std::int64_t tokens, std::vector<OpWork>& ops) {
  const std::int64_t t = ceil_div(tokens, p.data_ranks()), a = m.activation_bytes();
  ops.push_back(op(OpId::kEmbedding, EmbeddingShape{t, m.embedding_width, a}));
  ops.push_back(op(OpId::kFinalLayernorm, RmsNormShape{t, m.hidden, a, true}));
}

void head_ops(const ModelSpec& m, const Parallel& p, std::int64_t rows, std::vector<OpWork>& ops) {
  const std::int64_t r = ceil_div(rows, p.data_ranks()), a = m.activation_bytes();
  ops.push_back(linear(OpId::kLmHead, m, m.head_weights, r, ceil_div(m.vocabulary, p.tp), m.embedding_width));
  ops.push_back(op(OpId::kSampler, SamplingShape{r, m.vocabulary, a}));
}

AttentionWork::AttentionWork(const ModelSpec& m, const Parallel& p) {
  const Heads h = heads(m, p);
  const std::int64_t a = m.activation_bytes(), kv = bits(m.kv_dtype) / 8;
  decode_ = {0, 0, h.q, h.kv, m.head_dim, a, kv};
  prefill_ = {0, 0, h.q, h.kv, m.head_dim, a, kv, m.sliding_window};
}

double policy_share(const ModelSpec& m, const Parallel& p) { return static_cast<double>(heads(m, p).kv) / static_cast<double>(m.kv_heads); }

}  // namespace kvlab
