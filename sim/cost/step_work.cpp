#include "sim/cost/step_work.h"

#include "kernels/model/embedding/embedding.h"
#include "kernels/model/moe_experts/moe_experts.h"
#include "kernels/model/rmsnorm/rmsnorm.h"
#include "kernels/model/sampling/sampling.h"
#include "kernels/model/silu_mul/silu_mul.h"
#include "sim/cost/attention_work.h"

namespace kvlab {

namespace {

void mlp_ops(const ModelSpec& m, std::int64_t width, std::int64_t t, std::vector<OpWork>& ops) {
  const std::int64_t a = m.activation_bytes();
  ops.push_back(linear_work(OpId::kGateUpProj, m, m.mlp_weights, t, (m.gated_mlp ? 2 : 1) * width, m.hidden));
  ops.push_back(op_work(OpId::kActFn, SiluMulShape{t, width, a, m.gated_mlp}));
  ops.push_back(linear_work(OpId::kDownProj, m, m.mlp_weights, t, m.hidden, width));
}

void moe_ops(const ModelSpec& m, const Parallel& p, std::int64_t tokens, std::int64_t own_tokens, std::vector<OpWork>& ops) {
  ops.push_back(op_work(
      OpId::kRouter, LinearShape{own_tokens, m.experts, m.hidden, m.activation_bytes(), 8.0 * static_cast<double>(m.activation_bytes())}));
  ops.back().out = m.experts;
  ops.back().in = m.hidden;
  if (m.routed_hidden > 0) ops.push_back(linear_work(OpId::kRouter, m, m.mlp_weights, own_tokens, 2 * m.routed_hidden, m.hidden));
  if (p.dp == 1) ops.push_back(experts_op(m, p, tokens));
  if (m.shared_intermediate > 0) mlp_ops(m, ceil_div(m.shared_intermediate, p.tp), own_tokens, ops);
}

}  // namespace

OpWork experts_op(const ModelSpec& m, const Parallel& p, std::int64_t tokens) {
  MoeExpertsShape experts{tokens, m.expert_input(),     m.moe_intermediate,    m.experts,  m.experts_per_token,
                          p.ep,   m.activation_bytes(), m.expert_weights.bits, m.gated_mlp};
  if (p.ep == 1) experts.intermediate = ceil_div(m.moe_intermediate, p.expert_ranks());
  OpWork work = op_work(OpId::kMoe, experts);
  work.format = &m.expert_weights;
  work.pairs = pairs_per_rank(experts);
  return work;
}

void layer_ops(const ModelSpec& m, const Parallel& p, const LayerClass& layer, std::int64_t tokens, std::vector<OpWork>& ops) {
  const std::int64_t t = ceil_div(tokens, p.data_ranks());
  if (layer.parts() == 0) return;
  const std::int64_t norms = layer.parts() == 2 ? m.norms : m.norms / 2, a = m.activation_bytes();
  ops.push_back(op_work(OpId::kLayernorm, RmsNormShape{t, m.hidden, a, true}, static_cast<int>(norms)));
  if (m.layer_extras > 0)
    ops.push_back(op_work(OpId::kLayernorm, LinearShape{t, ceil_div(m.layer_extras, m.hidden), m.hidden, a, 8.0 * static_cast<double>(a)}));
  add_attention_ops(m, p, layer, t, ops);
  if (layer.has_experts)
    moe_ops(m, p, tokens, t, ops);
  else if (layer.has_mlp())
    mlp_ops(m, ceil_div(layer.shape.mlp, p.tp), t, ops);
}

void step_ops(const ModelSpec& m, const Parallel& p, std::int64_t tokens, std::vector<OpWork>& ops) {
  const std::int64_t t = ceil_div(tokens, p.data_ranks()), a = m.activation_bytes();
  ops.push_back(op_work(OpId::kEmbedding, EmbeddingShape{t, m.embedding_width, a}));
  ops.push_back(op_work(OpId::kFinalLayernorm, RmsNormShape{t, m.hidden, a, true}));
}

void head_ops(const ModelSpec& m, const Parallel& p, std::int64_t rows, std::vector<OpWork>& ops) {
  const std::int64_t r = ceil_div(rows, p.data_ranks()), a = m.activation_bytes();
  ops.push_back(linear_work(OpId::kLmHead, m, m.head_weights, r, ceil_div(m.vocabulary, p.tp), m.embedding_width));
  ops.push_back(op_work(OpId::kSampler, SamplingShape{r, m.vocabulary, a}));
}

}  // namespace kvlab
