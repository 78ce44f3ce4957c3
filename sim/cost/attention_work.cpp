#include "sim/cost/attention_work.h"

#include <algorithm>

#include "kernels/attention/append_kv/append_kv.h"
#include "kernels/model/rmsnorm/rmsnorm.h"
#include "kernels/model/rope/rope.h"
#include "kernels/model/silu_mul/silu_mul.h"

namespace kvlab {

namespace {

// One rank's share of the heads; KV heads are repeated when there are fewer of them than ranks.
struct Heads {
  std::int64_t q, kv;
};
Heads heads(const ModelSpec& m, const Parallel& p) { return {m.q_heads / p.tp, std::max<std::int64_t>(1, m.kv_heads / p.tp)}; }

RecurrentShape recurrent_shape(const ModelSpec& m, const Parallel& p) {
  const LinearAttention& l = m.linear;
  return {ceil_div(l.key_heads, p.tp),
          ceil_div(l.value_heads, p.tp),
          l.key_dim,
          l.value_dim,
          l.state_bytes(p.tp, m.activation_bytes()),
          m.activation_bytes(),
          l.rule == LinearAttention::Rule::kDelta};
}

void plain_ops(const ModelSpec& m, const Parallel& p, std::int64_t t, std::vector<OpWork>& ops) {
  const std::int64_t a = m.activation_bytes();
  const Heads h = heads(m, p);
  const std::int64_t queries = (m.attention_gate ? 2 : 1) * h.q;
  ops.push_back(linear_work(OpId::kQkvProj, m, m.attention_weights, t, (queries + 2 * h.kv) * m.head_dim, m.hidden));
  if (m.qk_norm) ops.push_back(op_work(OpId::kQkNorm, RmsNormShape{t, (h.q + h.kv) * m.head_dim, a, false}));
  if (!m.learned_positions) ops.push_back(op_work(OpId::kRotaryEmb, RopeShape{t, h.q + h.kv, m.head_dim, a}));
  ops.push_back(op_work(OpId::kAppendKv, AppendKvShape{t, h.kv, m.head_dim, a, bits(m.kv_dtype) / 8}));
  if (m.attention_gate) ops.push_back(op_work(OpId::kAttentionGate, SiluMulShape{t, h.q * m.head_dim, a, true}));
  ops.push_back(linear_work(OpId::kOProj, m, m.attention_weights, t, m.hidden, h.q * m.head_dim));
}

// Every rank projects to the latent space as a whole, because heads share it.
void latent_ops(const ModelSpec& m, const Parallel& p, std::int64_t t, std::vector<OpWork>& ops) {
  const LatentAttention& l = m.latent;
  const std::int64_t a = m.activation_bytes(), q_heads = m.q_heads / p.tp, q_width = q_heads * (l.nope + l.rope);
  ops.push_back(linear_work(OpId::kQkvAProj, m, m.attention_weights, t, l.q_rank + l.cached(), m.hidden));
  ops.push_back(op_work(OpId::kQkNorm, RmsNormShape{t, l.q_rank + l.kv_rank, a, false}));
  ops.push_back(linear_work(OpId::kQBProj, m, m.attention_weights, t, q_width, l.q_rank > 0 ? l.q_rank : m.hidden));
  ops.push_back(op_work(OpId::kRotaryEmb, RopeShape{t, q_heads + 1, l.rope, a}));
  constexpr std::int64_t kSlotBytes = 8;
  ops.push_back({OpId::kAppendKv, 0, t * (l.cached() * (a + bits(m.kv_dtype) / 8) + kSlotBytes)});
  ops.push_back(linear_work(OpId::kOProj, m, m.attention_weights, t, m.hidden, q_heads * l.value));
}

void linear_attention_ops(const ModelSpec& m, const Parallel& p, std::int64_t t, std::vector<OpWork>& ops) {
  const LinearAttention& l = m.linear;
  const std::int64_t a = m.activation_bytes(), values = ceil_div(l.value_width(), p.tp), mixed = ceil_div(l.conv_width(), p.tp);
  ops.push_back(linear_work(OpId::kLinearInProj, m, m.attention_weights, t, ceil_div(l.projected_width(), p.tp), m.hidden));
  if (mixed > 0) ops.push_back({OpId::kConv1d, 2 * t * mixed * l.conv_tokens, (2 * t + l.conv_tokens) * mixed * a});
  ops.push_back(op_work(OpId::kGatedNorm, SiluMulShape{t, values, a, true}));
  ops.push_back(linear_work(OpId::kLinearOutProj, m, m.attention_weights, t, m.hidden, values));
}

}  // namespace

AttentionWork::AttentionWork(const ModelSpec& m, const Parallel& p, const AttentionClass& layers)
    : kind_(layers.kind), kv_b_format_(m.attention_weights) {
  const Heads h = heads(m, p);
  const std::int64_t a = m.activation_bytes(), kv = bits(m.kv_dtype) / 8;
  decode_ = {0, 0, h.q, h.kv, m.head_dim, a, kv};
  prefill_ = {0, 0, h.q, h.kv, m.head_dim, a, kv, layers.window};
  const LatentAttention& l = m.latent;
  latent_decode_ = {0, 0, h.q, l.kv_rank, l.rope, a, kv};
  latent_prefill_ = {0, 0, h.q, l.nope, l.rope, l.value, a};
  if (m.linear.exists()) recurrent_ = recurrent_shape(m, p);
}

Work AttentionWork::latent_decode(std::int64_t rows, std::int64_t kv_tokens) const {
  LatentDecodeShape s = latent_decode_;
  s.rows = rows;
  s.kv_tokens = kv_tokens + rows;
  return {flops(s), bytes(s)};
}

Work AttentionWork::latent_prefill(const PrefillPiece& piece) const {
  LatentPrefillShape s = latent_prefill_;
  s.new_tokens = piece.new_tokens;
  s.kv_before = piece.kv_before;
  return {flops(s), bytes(s)};
}

std::array<OpWork, 2> AttentionWork::decode_ops(std::int64_t rows) const {
  const LatentPrefillShape& s = latent_prefill_;
  return {op_work(OpId::kQAbsorb, AbsorbShape{rows, s.q_heads, s.nope, latent_decode_.rank, s.activation_bytes}),
          op_work(OpId::kVAbsorb, AbsorbShape{rows, s.q_heads, s.value, latent_decode_.rank, s.activation_bytes})};
}

OpWork AttentionWork::prefill_op(std::int64_t tokens) const {
  const LatentPrefillShape& s = latent_prefill_;
  const LinearShape up{tokens, s.q_heads * (s.nope + s.value), latent_decode_.rank, s.activation_bytes, kv_b_format_.bits};
  return {OpId::kKvBProj, flops(up), bytes(up), 1, &kv_b_format_};
}

void add_attention_ops(const ModelSpec& m, const Parallel& p, AttentionKind kind, std::int64_t tokens, std::vector<OpWork>& ops) {
  if (kind == AttentionKind::kLatent)
    latent_ops(m, p, tokens, ops);
  else if (kind == AttentionKind::kLinear)
    linear_attention_ops(m, p, tokens, ops);
  else
    plain_ops(m, p, tokens, ops);
}

double policy_share(const ModelSpec& m, const Parallel& p) { return static_cast<double>(heads(m, p).kv) / static_cast<double>(m.kv_heads); }

}  // namespace kvlab
