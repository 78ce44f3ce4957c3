#include "engine/model/transformer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "kernels/attention/attention_prefill/attention_prefill.h"
#include "kernels/model/layer/layer.h"

namespace kvlab {

namespace {

LinearPart part(Weight w, Weight bias, std::span<float> y, std::int64_t tokens) {
  return {w.data(), y.data(), static_cast<std::int64_t>(y.size()) / tokens, bias.empty() ? nullptr : bias.data()};
}

void linear(std::span<const float> x, std::int64_t tokens, std::span<const std::int32_t> pieces, std::initializer_list<LinearPart> parts) {
  run_cpu(LinearGroup{x.data(), tokens, static_cast<std::int64_t>(x.size()) / tokens, parts.begin(),
                      static_cast<std::int32_t>(parts.size()), pieces});
}

// In place, per head.
void norm_heads(std::span<float> x, Weight weight, float epsilon) {
  const auto width = static_cast<std::int64_t>(weight.size());
  run_cpu(RmsNorm{x.data(), nullptr, weight.data(), x.data(), static_cast<std::int64_t>(x.size()) / width, width, epsilon});
}

class PlainAttention final : public AttentionHost {
 public:
  PlainAttention(const ModelConfig& config, KvState& kv, std::int64_t tokens, Recorder* recorder)
      : config_(config), kv_(kv), tokens_(tokens), recorder_(recorder) {}

  void on_residual(std::int32_t stage, const float* residual) override {
    if (recorder_ != nullptr) recorder_->on_residual(stage, span_of(residual, config_.hidden_dim));
  }
  void before_rope(std::int32_t layer, const float* hidden, const float* q, const float* k) override {
    if (recorder_ == nullptr) return;
    recorder_->on_hidden(layer, span_of(hidden, config_.hidden_dim));
    recorder_->on_pre_rope(layer, span_of(q, config_.q_width()), span_of(k, kv_.token_floats));
  }

  void attend(std::int32_t layer, const float* q, const float* k, const float* v, float* out) override {
    std::vector<float>& keys = kv_.k[static_cast<std::size_t>(layer)];
    std::vector<float>& values = kv_.v[static_cast<std::size_t>(layer)];
    const std::span<const float> new_k = span_of(k, kv_.token_floats), new_v = span_of(v, kv_.token_floats);
    keys.insert(keys.end(), new_k.begin(), new_k.end());
    values.insert(values.end(), new_v.begin(), new_v.end());
    AttentionPrefill op{q,
                        keys.data(),
                        values.data(),
                        out,
                        nullptr,
                        tokens_,
                        kv_.tokens,
                        config_.q_heads,
                        config_.kv_heads,
                        config_.head_dim,
                        1.0F / std::sqrt(static_cast<float>(config_.head_dim)),
                        config_.window(layer)};
    op.scratch = room_in(scratch_, static_cast<std::size_t>(scratch_floats(op)));
    run_cpu(op);
    if (recorder_ != nullptr) recorder_->on_attention(layer, span_of(q, config_.q_width()), new_k, new_v, span_of(out, config_.q_width()));
  }

 private:
  [[nodiscard]] std::span<const float> span_of(const float* data, std::int64_t width) const {
    return {data, static_cast<std::size_t>(tokens_ * width)};
  }

  const ModelConfig& config_;
  KvState& kv_;
  std::int64_t tokens_;
  Recorder* recorder_;
  BigArray<float> scratch_;
};

}  // namespace

// branch: last attention or MLP output, for the next norm.
struct Transformer::Activations {
  using Part = std::pair<std::span<float> Activations::*, std::int64_t>;
  // Widths per token.
  static std::array<Part, 11> parts(const ModelConfig& c) {
    const std::int64_t q_width = c.q_width(), kv_width = c.kv_width();
    const std::int64_t rope_width = c.head_dim / 2;
    using A = Activations;
    return {{{&A::residual, c.hidden_dim},
             {&A::branch, c.hidden_dim},
             {&A::hidden, c.hidden_dim},
             {&A::q, q_width},
             {&A::attended, q_width},
             {&A::k, kv_width},
             {&A::v, kv_width},
             {&A::gate, c.intermediate_dim},
             {&A::up, c.intermediate_dim},
             {&A::cos, rope_width},
             {&A::sin, rope_width}}};
  }
  static std::size_t floats(const ModelConfig& c, std::int64_t tokens) {
    std::int64_t width = 0;
    for (const auto& [part, each] : parts(c)) width += each;
    return static_cast<std::size_t>(tokens * width);
  }
  Activations(const ModelConfig& c, std::int64_t n, AttentionHost& host) : tokens(n), pieces(host.pieces()) {
    float* next = host.pass_memory(floats(c, n)).data();
    for (const auto& [part, each] : parts(c)) {
      this->*part = {next, static_cast<std::size_t>(n * each)};
      next += n * each;
    }
    std::fill(residual.begin(), residual.end(), 0.0F);
  }
  // 0 for tokens that left.
  [[nodiscard]] std::vector<float> spread(std::int64_t n, std::int64_t width) const {
    std::vector<float> all(static_cast<std::size_t>(n * width));
    for (std::size_t i = 0; i < place.size(); ++i)
      std::copy_n(hidden.begin() + static_cast<std::int64_t>(i) * width, width, all.begin() + place[i] * width);
    return all;
  }
  void norm(Weight weight, float epsilon) {
    const auto width = static_cast<std::int64_t>(weight.size());
    run_cpu(RmsNorm{branch.data(), residual.data(), weight.data(), hidden.data(), tokens, width, epsilon});
  }

  void keep_rows(std::span<const std::int32_t> rows, const ModelConfig& c) {
    for (const auto& [part, each] : parts(c)) {
      std::span<float>& all = this->*part;
      if (part == &Activations::residual || part == &Activations::branch || part == &Activations::cos || part == &Activations::sin)
        for (std::size_t i = 0; i < rows.size(); ++i)
          std::copy_n(all.begin() + rows[i] * each, each, all.begin() + static_cast<std::int64_t>(i) * each);
      all = all.first(rows.size() * static_cast<std::size_t>(each));
    }
    if (place.empty()) {
      place.assign(rows.begin(), rows.end());
    } else {
      for (std::size_t i = 0; i < rows.size(); ++i) place[i] = place[static_cast<std::size_t>(rows[i])];
      place.resize(rows.size());
    }
    tokens = std::ssize(rows);
  }

  std::int64_t tokens;
  std::span<const std::int32_t> pieces;       // as AttentionHost::pieces()
  std::vector<std::int32_t> place;            // in the batch; empty: all are left
  std::span<float> residual, branch, hidden;  // [tokens, hidden_dim]
  std::span<float> q, attended;               // [tokens, q_heads, head_dim]
  std::span<float> k, v;                      // [tokens, kv_heads, head_dim]
  std::span<float> gate, up;                  // [tokens, intermediate_dim]
  std::span<float> cos, sin;                  // [tokens, head_dim / 2]
};

Transformer::Transformer(ModelConfig config, ModelWeights weights)
    : config_(std::move(config)), weights_(std::move(weights)), rotary_({config_.rope_base, config_.rope_scaling}, config_.head_dim) {}

Transformer Transformer::load(const std::string& dir) {
  ModelConfig config = read_model_config(dir);
  ModelWeights weights = load_weights(dir, config);
  return {std::move(config), std::move(weights)};
}

// Before RoPE.
void Transformer::project(const LayerWeights& w, Activations& a) const {
  const ModelConfig& c = config_;
  linear(a.hidden, a.tokens, a.pieces,
         {part(w.q, w.q_bias, a.q, a.tokens), part(w.k, w.k_bias, a.k, a.tokens), part(w.v, w.v_bias, a.v, a.tokens)});
  if (!c.qk_norm) return;
  norm_heads(a.q, w.q_norm, c.norm_epsilon);
  norm_heads(a.k, w.k_norm, c.norm_epsilon);
}

void Transformer::queries_keys_values(std::int32_t layer, AttentionHost& host, Activations& a) const {
  const ModelConfig& c = config_;
  project(weights_.layers[static_cast<std::size_t>(layer)], a);
  host.before_rope(layer, a.hidden.data(), a.q.data(), a.k.data());
  run_cpu(Rope{a.q.data(), a.q.data(), a.cos.data(), a.sin.data(), nullptr, nullptr, a.tokens, c.q_heads, c.head_dim});
  run_cpu(Rope{a.k.data(), a.k.data(), a.cos.data(), a.sin.data(), nullptr, nullptr, a.tokens, c.kv_heads, c.head_dim});
  host.attend(layer, a.q.data(), a.k.data(), a.v.data(), a.attended.data());
}

void Transformer::attention(std::int32_t layer, AttentionHost& host, Activations& a) const {
  const LayerWeights& w = weights_.layers[static_cast<std::size_t>(layer)];
  queries_keys_values(layer, host, a);
  linear(a.attended, a.tokens, a.pieces, {part(w.o, w.o_bias, a.branch, a.tokens)});
}

void Transformer::mlp(const LayerWeights& w, Activations& a) const {
  linear(a.hidden, a.tokens, a.pieces, {part(w.gate, w.gate_bias, a.gate, a.tokens), part(w.up, w.up_bias, a.up, a.tokens)});
  run_cpu(SiluMul{a.gate.data(), a.up.data(), a.gate.data(), a.tokens, config_.intermediate_dim});
  linear(a.gate, a.tokens, a.pieces, {part(w.down, w.down_bias, a.branch, a.tokens)});
}

void Transformer::check(const TokenBatch& batch) const {
  for (std::size_t i = 0; i < batch.ids.size(); ++i) check_token(config_, batch.positions[i], batch.ids[i]);
}

void Transformer::embed(const TokenBatch& batch, Activations& a) const {
  rotary_.fill(batch.positions, a.cos.data(), a.sin.data());
  run_cpu(Embedding{batch.ids.data(), weights_.embedding.data(), a.branch.data(), a.tokens, config_.hidden_dim});
}

void Transformer::layer(std::int32_t layer, AttentionHost& host, Activations& a) const {
  const LayerWeights& w = weights_.layers[static_cast<std::size_t>(layer)];
  a.norm(w.attention_norm, config_.norm_epsilon);
  host.on_residual(2 * layer, a.residual.data());
  attention(layer, host, a);
  a.norm(w.mlp_norm, config_.norm_epsilon);
  host.on_residual(2 * layer + 1, a.residual.data());
  mlp(w, a);
}

void Transformer::scan(const TokenBatch& batch, AttentionHost& host, std::int32_t layers) const {
  check(batch);
  if (batch.ids.empty() || layers == 0) return;
  Activations a(config_, std::ssize(batch.ids), host);
  embed(batch, a);
  for (std::int32_t l = 0; l + 1 < layers; ++l) layer(l, host, a);
  a.norm(weights_.layers[static_cast<std::size_t>(layers) - 1].attention_norm, config_.norm_epsilon);
  queries_keys_values(layers - 1, host, a);
}

std::vector<float> Transformer::forward(const TokenBatch& batch, AttentionHost& host) const {
  check(batch);
  if (batch.ids.empty()) return {};
  const AttentionHost::Rewritten rewritten = host.rewritten(batch);
  if (rewritten.rows.empty()) return forward_rows(batch, host);
  std::vector<std::int32_t> ids;
  for (const std::int32_t row : rewritten.rows) ids.push_back(batch.ids[static_cast<std::size_t>(row)]);
  const std::vector<float> some = forward_rows({ids, rewritten.positions}, host);
  const std::int64_t width = config_.hidden_dim;
  std::vector<float> all(batch.ids.size() * static_cast<std::size_t>(width));
  for (std::size_t i = 0; i < ids.size(); ++i)
    std::copy_n(some.begin() + static_cast<std::int64_t>(i) * width, width, all.begin() + rewritten.rows[i] * width);
  return all;
}

std::vector<float> Transformer::forward_rows(const TokenBatch& batch, AttentionHost& host) const {
  const auto n = static_cast<std::int64_t>(batch.ids.size());
  Activations a(config_, n, host);
  embed(batch, a);
  for (std::int32_t l = 0; l < config_.layers; ++l) {
    layer(l, host, a);
    if (l + 1 == config_.layers) break;
    if (const std::span<const std::int32_t> rows = host.going_on(l); !rows.empty()) a.keep_rows(rows, config_);
  }
  a.norm(weights_.final_norm, config_.norm_epsilon);
  host.on_residual(2 * config_.layers, a.residual.data());
  if (a.place.empty()) return {a.hidden.data(), a.hidden.data() + a.hidden.size()};
  return a.spread(n, config_.hidden_dim);
}

std::size_t Transformer::pass_floats(std::int64_t tokens) const { return Activations::floats(config_, tokens); }

std::vector<float> Transformer::logits(std::span<const float> hidden) const {
  const std::int64_t n = static_cast<std::int64_t>(hidden.size()) / config_.hidden_dim;
  std::vector<float> all(static_cast<std::size_t>(n * config_.vocab_size));
  if (n > 0) linear(hidden, n, {}, {part(weights_.head(), {}, all, n)});
  return all;
}

std::vector<std::int32_t> consecutive(std::int64_t first, std::int64_t count) {
  std::vector<std::int32_t> all(static_cast<std::size_t>(count));
  std::iota(all.begin(), all.end(), static_cast<std::int32_t>(first));
  return all;
}

std::int32_t greedy_token(std::span<const float> logits, std::int32_t vocab_size) {
  const std::span<const float> last = logits.last(static_cast<std::size_t>(vocab_size));
  return static_cast<std::int32_t>(std::max_element(last.begin(), last.end()) - last.begin());
}

KvState::KvState(const ModelConfig& config) : k(static_cast<std::size_t>(config.layers)), v(k.size()), token_floats(config.kv_width()) {}

void KvState::truncate(std::int64_t kept) {
  if (kept > tokens) throw InternalError("a KV state cannot be cut to more tokens than it holds");
  tokens = kept;
  for (std::vector<float>& layer : k) layer.resize(static_cast<std::size_t>(kept * token_floats));
  for (std::vector<float>& layer : v) layer.resize(static_cast<std::size_t>(kept * token_floats));
}

std::vector<float> forward(const Transformer& model, std::span<const std::int32_t> ids, KvState& kv, Recorder* recorder) {
  const std::vector<std::int32_t> positions = consecutive(kv.tokens, std::ssize(ids));
  PlainAttention host(model.config(), kv, static_cast<std::int64_t>(ids.size()), recorder);
  std::vector<float> hidden = model.forward({ids, positions}, host);
  kv.tokens += static_cast<std::int64_t>(ids.size());
  return hidden;
}

std::vector<float> forward_logits(const Transformer& model, std::span<const std::int32_t> ids, KvState& kv, Recorder* recorder) {
  return model.logits(forward(model, ids, kv, recorder));
}

}  // namespace kvlab
