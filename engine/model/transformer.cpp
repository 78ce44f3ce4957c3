#include "engine/model/transformer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "kernels/attention_prefill/attention_prefill.h"
#include "kernels/embedding/embedding.h"
#include "kernels/linear/linear.h"
#include "kernels/rmsnorm/rmsnorm.h"
#include "kernels/rope/rope.h"
#include "kernels/silu_mul/silu_mul.h"

namespace kvlab {

namespace {

std::vector<float> floats(std::int64_t n) { return std::vector<float>(static_cast<std::size_t>(n)); }

void linear(const std::vector<float>& x, const std::vector<float>& w, float* y, std::int64_t tokens, std::int64_t out_dim) {
  run_cpu(Linear{x.data(), w.data(), y, tokens, static_cast<std::int64_t>(w.size()) / out_dim, out_dim});
}

}  // namespace

KvState::KvState(const ModelConfig& config)
    : k(static_cast<std::size_t>(config.layers)), v(k.size()), token_floats(std::int64_t{config.kv_heads} * config.head_dim) {}

void KvState::truncate(std::int64_t kept) {
  if (kept > tokens) throw InternalError("a KV state cannot be cut to more tokens than it holds");
  tokens = kept;
  for (std::vector<float>& layer : k) layer.resize(static_cast<std::size_t>(kept * token_floats));
  for (std::vector<float>& layer : v) layer.resize(static_cast<std::size_t>(kept * token_floats));
}

// Of one forward pass. `branch` is what the last attention or MLP adds to `residual`; the next norm adds it.
struct Transformer::Activations {
  Activations(const ModelConfig& c, std::int64_t n)
      : tokens(n),
        residual(floats(n * c.hidden_dim)),
        branch(floats(n * c.hidden_dim)),
        hidden(floats(n * c.hidden_dim)),
        q(floats(n * c.q_heads * c.head_dim)),
        attended(q.size()),
        gate(floats(n * c.intermediate_dim)),
        up(gate.size()),
        cos(floats(n * c.head_dim / 2)),
        sin(cos.size()) {}
  void norm(const std::vector<float>& weight, float epsilon) {
    const auto width = static_cast<std::int64_t>(weight.size());
    run_cpu(RmsNorm{branch.data(), residual.data(), weight.data(), hidden.data(), tokens, width, epsilon});
  }

  std::int64_t tokens;
  std::vector<float> residual, branch, hidden;  // [tokens, hidden_dim]
  std::vector<float> q, attended;               // [tokens, q_heads, head_dim]
  std::vector<float> gate, up;                  // [tokens, intermediate_dim]
  std::vector<float> cos, sin;                  // [tokens, head_dim / 2]
  std::vector<float> scratch;
};

Transformer::Transformer(ModelConfig config, ModelWeights weights) : config_(std::move(config)), weights_(std::move(weights)) {
  // In float32 step by step, as the models are trained and served: at position 4,000 exacter frequencies would turn by other angles.
  for (std::int32_t i = 0; i < config_.head_dim; i += 2) {
    const float exponent = static_cast<float>(i) / static_cast<float>(config_.head_dim);
    frequencies_.push_back(1.0F / static_cast<float>(std::pow(config_.rope_base, double{exponent})));
  }
}

Transformer Transformer::load(const std::string& dir) {
  ModelConfig config = read_model_config(dir);
  ModelWeights weights = load_weights(dir, config);
  return {std::move(config), std::move(weights)};
}

void Transformer::fill_rotations(std::int64_t first, Activations& a) const {
  std::size_t at = 0;
  for (std::int64_t t = 0; t < a.tokens; ++t) {
    for (const float frequency : frequencies_) {
      const float angle = static_cast<float>(first + t) * frequency;
      a.cos[at] = static_cast<float>(std::cos(double{angle}));
      a.sin[at++] = static_cast<float>(std::sin(double{angle}));
    }
  }
}

void Transformer::attention(std::int32_t layer, KvState& kv, Activations& a, Recorder* recorder) const {
  const ModelConfig& c = config_;
  const LayerWeights& w = weights_.layers[static_cast<std::size_t>(layer)];
  std::vector<float>& keys = kv.k[static_cast<std::size_t>(layer)];
  std::vector<float>& values = kv.v[static_cast<std::size_t>(layer)];
  const auto before = static_cast<std::size_t>(kv.tokens * kv.token_floats), added = static_cast<std::size_t>(a.tokens * kv.token_floats);
  keys.resize(before + added);
  values.resize(before + added);
  float* const k = keys.data() + before;
  linear(a.hidden, w.q, a.q.data(), a.tokens, std::int64_t{c.q_heads} * c.head_dim);
  linear(a.hidden, w.k, k, a.tokens, kv.token_floats);
  linear(a.hidden, w.v, values.data() + before, a.tokens, kv.token_floats);
  if (recorder != nullptr) {
    recorder->on_hidden(layer, a.hidden);
    recorder->on_pre_rope(layer, a.q, {k, added});
  }
  run_cpu(Rope{a.q.data(), a.cos.data(), a.sin.data(), a.tokens, c.q_heads, c.head_dim});
  run_cpu(Rope{k, a.cos.data(), a.sin.data(), a.tokens, c.kv_heads, c.head_dim});
  AttentionPrefill attend{a.q.data(),
                          keys.data(),
                          values.data(),
                          a.attended.data(),
                          nullptr,
                          a.tokens,
                          kv.tokens,
                          c.q_heads,
                          c.kv_heads,
                          c.head_dim,
                          1.0F / std::sqrt(static_cast<float>(c.head_dim))};
  a.scratch.resize(static_cast<std::size_t>(scratch_floats(attend)));
  attend.scratch = a.scratch.data();
  run_cpu(attend);
  if (recorder != nullptr) recorder->on_attention(layer, a.q, {k, added}, {values.data() + before, added}, a.attended);
  linear(a.attended, w.o, a.branch.data(), a.tokens, c.hidden_dim);
}

void Transformer::mlp(const LayerWeights& w, Activations& a) const {
  linear(a.hidden, w.gate, a.gate.data(), a.tokens, config_.intermediate_dim);
  linear(a.hidden, w.up, a.up.data(), a.tokens, config_.intermediate_dim);
  run_cpu(SiluMul{a.gate.data(), a.up.data(), a.gate.data(), a.tokens, config_.intermediate_dim});
  linear(a.gate, w.down, a.branch.data(), a.tokens, config_.hidden_dim);
}

std::vector<float> Transformer::forward(std::span<const std::int32_t> ids, KvState& kv, Recorder* recorder) const {
  const auto n = static_cast<std::int64_t>(ids.size());
  for (std::size_t i = 0; i < ids.size(); ++i)
    if (ids[i] < 0 || ids[i] >= config_.vocab_size)
      throw InputError(fmt::format("token {} has id {}, outside [0, {}) of model '{}'", kv.tokens + static_cast<std::int64_t>(i), ids[i],
                                   config_.vocab_size, config_.name));
  Activations a(config_, n);
  fill_rotations(kv.tokens, a);
  run_cpu(Embedding{ids.data(), weights_.embedding.data(), a.branch.data(), n, config_.hidden_dim});
  for (std::int32_t layer = 0; layer < config_.layers; ++layer) {
    const LayerWeights& w = weights_.layers[static_cast<std::size_t>(layer)];
    a.norm(w.attention_norm, config_.norm_epsilon);
    attention(layer, kv, a, recorder);
    a.norm(w.mlp_norm, config_.norm_epsilon);
    mlp(w, a);
  }
  a.norm(weights_.final_norm, config_.norm_epsilon);
  kv.tokens += n;
  std::vector<float> logits = floats(n * config_.vocab_size);
  linear(a.hidden, weights_.head, logits.data(), n, config_.vocab_size);
  return logits;
}

std::int32_t greedy_token(std::span<const float> logits, std::int32_t vocab_size) {
  const std::span<const float> last = logits.last(static_cast<std::size_t>(vocab_size));
  return static_cast<std::int32_t>(std::max_element(last.begin(), last.end()) - last.begin());
}

}  // namespace kvlab
