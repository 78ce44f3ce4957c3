#include "sim/cost/step_work.h"

#include <algorithm>

#include "kernels/attention/append_kv/append_kv.h"
#include "kernels/model/layer/layer.h"
#include "kernels/model/sampling/sampling.h"

namespace kvlab {

namespace {

// Fewer KV heads than ranks are replicated.
struct Heads {
  std::int64_t q, kv;
};
Heads heads(std::int64_t q, std::int64_t kv, const Parallel& p) { return {q / p.tp, std::max<std::int64_t>(1, kv / p.tp)}; }
Heads heads(const ModelSpec& m, const Parallel& p) { return heads(m.q_heads, m.kv_heads, p); }

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

void plain_ops(const ModelSpec& m, const Parallel& p, const HeadShape& all, std::int64_t t, std::vector<OpWork>& ops) {
  const std::int64_t a = m.activation_bytes();
  const Heads h = heads(all.q, all.kv, p);
  const std::int64_t kv = all.kv == 0 ? 0 : all.projected() / all.kv * h.kv, gate = m.attention_gate ? h.q * all.value_dim
                                                                                    : m.head_gate    ? h.q
                                                                                                     : 0;
  ops.push_back(linear_work(OpId::kQkvProj, m, m.attention_weights, t, h.q * all.key_dim + gate + kv, m.hidden));
  if (m.qk_norm) ops.push_back(op_work(OpId::kQkNorm, RmsNormShape{t, (h.q + h.kv) * all.key_dim, a, false}));
  if (!m.learned_positions) ops.push_back(op_work(OpId::kRotaryEmb, RopeShape{t, h.q + h.kv, all.key_dim, a}));
  if (all.has_own_kv) ops.push_back(op_work(OpId::kAppendKv, AppendKvShape{t, h.kv, all.mean_dim(), a, bits(m.kv_dtype) / 8}));
  if (m.attention_gate || m.head_gate) ops.push_back(op_work(OpId::kAttentionGate, SiluMulShape{t, h.q * all.value_dim, a, true}));
  ops.push_back(linear_work(OpId::kOProj, m, m.attention_weights, t, m.hidden, h.q * all.value_dim));
}

// Not split over ranks.
void index_ops(const ModelSpec& m, std::int64_t t, std::vector<OpWork>& ops) {
  const SparseIndex& x = m.index;
  const std::int64_t keys = m.compressed.exists() ? 4 * x.dim : x.dim;
  ops.push_back(linear_work(OpId::kQkvAProj, m, m.attention_weights, t, keys + x.heads, m.hidden));
  ops.push_back(linear_work(OpId::kQBProj, m, m.attention_weights, t, x.heads * x.dim, x.query_rank > 0 ? x.query_rank : m.hidden));
}

void compressed_ops(const ModelSpec& m, const Parallel& p, const LayerClass& layer, std::int64_t t, std::vector<OpWork>& ops) {
  const CompressedAttention& c = m.compressed;
  const std::int64_t a = m.activation_bytes(), q = m.q_heads / p.tp, halves = layer.has_index ? 2 : 1;
  const std::int64_t vectors = layer.shape.entry_tokens == 0 ? 0 : 2 * halves * c.dim;
  ops.push_back(linear_work(OpId::kQkvAProj, m, m.attention_weights, t, c.q_rank + c.dim + vectors, m.hidden));
  ops.push_back(op_work(OpId::kQkNorm, RmsNormShape{t, c.q_rank + c.dim, a, false}));
  ops.push_back(linear_work(OpId::kQBProj, m, m.attention_weights, t, q * c.dim, c.q_rank));
  ops.push_back(op_work(OpId::kRotaryEmb, RopeShape{t, q + 1, c.dim, a}));
  ops.push_back({OpId::kAppendKv, 0, t * c.dim * (a + bits(m.kv_dtype) / 8)});
  ops.push_back(linear_work(OpId::kOProj, m, m.attention_weights, t, c.out_rank, q * c.dim));
  ops.push_back(linear_work(OpId::kOProj, m, m.attention_weights, t, m.hidden, ceil_div(c.out_groups * c.out_rank, p.tp)));
}

// Each rank does the whole projection to the latent space.
void latent_ops(const ModelSpec& m, const Parallel& p, std::int64_t t, std::vector<OpWork>& ops) {
  const LatentAttention& l = m.latent;
  const std::int64_t a = m.activation_bytes(), q_heads = m.q_heads / p.tp, q_width = q_heads * (l.nope + l.rope);
  ops.push_back(linear_work(OpId::kQkvAProj, m, m.attention_weights, t, l.q_rank + l.cached(), m.hidden));
  ops.push_back(op_work(OpId::kQkNorm, RmsNormShape{t, l.q_rank + l.kv_rank, a, false}));
  ops.push_back(linear_work(OpId::kQBProj, m, m.attention_weights, t, q_width, l.q_rank > 0 ? l.q_rank : m.hidden));
  ops.push_back(op_work(OpId::kRotaryEmb, RopeShape{t, q_heads + 1, l.rope, a}));
  constexpr std::int64_t kSlotBytes = 8;
  ops.push_back({OpId::kAppendKv, 0, t * (l.cached() * (a + bits(m.kv_dtype) / 8) + kSlotBytes)});
  if (m.attention_gate) ops.push_back(linear_work(OpId::kQkvProj, m, m.attention_weights, t, q_heads * l.value, m.hidden));
  ops.push_back(linear_work(OpId::kOProj, m, m.attention_weights, t, m.hidden, q_heads * l.value));
}

void linear_attention_ops(const ModelSpec& m, const Parallel& p, std::int64_t t, std::vector<OpWork>& ops) {
  const LinearAttention& l = m.linear;
  const std::int64_t a = m.activation_bytes(), values = ceil_div(l.value_width(), p.tp), mixed = ceil_div(l.conv_width(), p.tp);
  ops.push_back(linear_work(OpId::kLinearInProj, m, m.attention_weights, t,
                            ceil_div(l.projected_width() + ceil_div(l.inner, m.hidden), p.tp), m.hidden));
  if (mixed > 0) ops.push_back({OpId::kConv1d, 2 * t * mixed * l.conv_tokens, (2 * t + l.conv_tokens) * mixed * a});
  ops.push_back(op_work(OpId::kGatedNorm, SiluMulShape{t, values, a, true}));
  ops.push_back(linear_work(OpId::kLinearOutProj, m, m.attention_weights, t, m.hidden, values));
}

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

AttentionWork::AttentionWork(const ModelSpec& m, const Parallel& p, const AttentionClass& layers)
    : kind_(layers.kind), is_sparse_(layers.is_sparse), kv_b_format_(m.attention_weights) {
  const HeadShape& own = layers.shape.heads;
  const bool has_own = own.q > 0;
  const Heads h = has_own ? heads(own.q, own.kv, p) : heads(m, p);
  const std::int64_t a = m.activation_bytes(), kv = bits(m.kv_dtype) / 8, dim = has_own ? own.mean_dim() : m.head_dim;
  prefill_ = {0, 0, h.q, h.kv, dim, a, kv, layers.window};
  const LatentAttention& l = m.latent;
  latent_decode_ = {0, 0, h.q, l.kv_rank, l.rope, a, kv};
  latent_prefill_ = {0, 0, h.q, l.nope, l.rope, l.value, a};
  if (m.linear.exists()) recurrent_ = recurrent_shape(m, p);
  const std::int64_t key_bytes = m.index.key_bytes > 0 ? m.index.key_bytes : m.index.dim * kv;
  index_ = {m.index.heads, m.index.dim, key_bytes, std::max<std::int64_t>(1, layers.shape.entry_tokens)};
  compressed_ = {h.q, m.compressed.dim, layers.shape.entry_tokens, m.compressed.window, a, kv};
  const Work one = decode_work(1, 1), longer = decode_work(1, 2);
  row_ = one;
  token_ = {longer.flops - one.flops, longer.bytes - one.bytes};
}

Work AttentionWork::decode_work(std::int64_t rows, std::int64_t kv_tokens) const {
  switch (kind_) {
    case AttentionKind::kLatent: {
      LatentDecodeShape s = latent_decode_;
      s.rows = rows;
      s.kv_tokens = kv_tokens;
      return {flops(s), bytes(s)};
    }
    case AttentionKind::kLinear:
      return {decode_flops(recurrent_, rows), decode_bytes(recurrent_, rows)};
    case AttentionKind::kIndex:
      return {index_flops(index_, kv_tokens), index_bytes(index_, kv_tokens, rows)};
    case AttentionKind::kCompressed:
      return {compressed_flops(compressed_, kv_tokens, rows), compressed_bytes(compressed_, kv_tokens, rows * compressed_.window, rows)};
    default: {
      const AttentionPrefillShape& p = prefill_;
      const AttentionDecodeShape s{rows, kv_tokens, p.q_heads, p.kv_heads, p.head_dim, p.activation_bytes, p.kv_bytes};
      return {flops(s), bytes(s)};
    }
  }
}

// Queries score all earlier tokens. Compressed vectors: only chosen ones in sparse layers.
Work AttentionWork::other_prefill(const PrefillPiece& piece) const {
  const AttentionPrefillShape s = of_piece(prefill_, piece);
  const std::int64_t pairs = attended_pairs(s), all = s.new_tokens == 0 ? 0 : s.new_tokens + s.kv_before;
  if (kind_ == AttentionKind::kIndex) return {index_flops(index_, pairs), index_bytes(index_, all, s.new_tokens)};
  const std::int64_t recent = std::min(all, s.new_tokens + compressed_.window);
  return {compressed_flops(compressed_, pairs, s.new_tokens), compressed_bytes(compressed_, all, recent, s.new_tokens)};
}

Work AttentionWork::latent_prefill(const PrefillPiece& piece) const {
  const LatentPrefillShape s = of_piece(latent_prefill_, piece);
  if (!is_sparse_) return {flops(s), bytes(s)};
  const AttentionPrefillShape chosen = of_piece(prefill_, piece);
  const LatentDecodeShape& l = latent_decode_;
  return {sparse_flops(s, attended_pairs(chosen), l.rank), sparse_bytes(s, l.rank, l.kv_bytes)};
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

void add_attention_ops(const ModelSpec& m, const Parallel& p, const LayerClass& layer, std::int64_t tokens, std::vector<OpWork>& ops) {
  if (layer.attention == AttentionKind::kNone) return;
  if (layer.attention == AttentionKind::kLatent)
    latent_ops(m, p, tokens, ops);
  else if (layer.attention == AttentionKind::kLinear)
    linear_attention_ops(m, p, tokens, ops);
  else if (layer.attention == AttentionKind::kCompressed)
    compressed_ops(m, p, layer, tokens, ops);
  else
    plain_ops(m, p, layer.shape.heads, tokens, ops);
  if (layer.has_index) index_ops(m, tokens, ops);
}

double policy_share(const ModelSpec& m, const Parallel& p) { return static_cast<double>(heads(m, p).kv) / static_cast<double>(m.kv_heads); }

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
  constexpr std::size_t kUsual = 16;
  if (ops.capacity() < kUsual) ops.reserve(kUsual);
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
