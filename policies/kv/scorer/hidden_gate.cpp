#include <fmt/format.h>

#include <algorithm>

#include "kernels/score/token_scores_op.h"
#include "policies/kv/recipe/trained_tensors.h"
#include "policies/kv/scorer/scorer.h"
#include "policies/kv/scorer/token_model_op.h"
#include "policies/kv/step_arrays.h"

namespace kvlab {

namespace {

// A word of each token has the score that a small trained model gives.
class TrainedScorer : public Scorer {
 public:
  [[nodiscard]] TakesWeights takes_weights() const final { return TakesWeights::kAlways; }
  [[nodiscard]] std::string refuses(const ModelShape& model) const final {
    if (weights_ == nullptr) return "";
    std::string why = weights_->refuses_more_layers(tensors(model.num_layers, model).front().name, model.num_layers);
    for (std::int32_t l = 0; l < model.num_layers && why.empty(); ++l)
      for (const Tensor& t : tensors(l, model))
        if (why.empty()) why = weights_->refuses(t.name, t.shape, t.of);
    return why;
  }
  [[nodiscard]] std::int32_t num_words() const final { return 1; }

  void score(LayerStep& step, float* scores) final {
    step.ops(TokenScores{step.kv, TokenScores::Kind::kWord, first_word(), 0, nullptr, nullptr, scores});
  }

 protected:
  struct Tensor {
    std::string name;
    std::vector<std::int64_t> shape;
    const char* of;
  };

  [[nodiscard]] virtual std::vector<Tensor> tensors(std::int32_t layer, const ModelShape& model) const = 0;
  static std::string name(std::int32_t layer, const std::string& tensor) { return fmt::format("layers.{}.{}", layer, tensor); }
  [[nodiscard]] bool has_data(const LayerStep& step) const { return weights_ != nullptr && step.ops.computes(); }
  const float* data(const LayerStep& step, const std::string& tensor) {
    return placed_.floats(*weights_, name(step.layer, tensor), step.memory());
  }

  std::shared_ptr<const TrainedTensors> weights_;

 private:
  PlacedTensors placed_;
};

// Scores are computed once per token, from low-rank keys against learned sink keys. Tensors layers.L.NAME as published.
class HiddenGate final : public TrainedScorer {
 public:
  explicit HiddenGate(Params& p)
      : rank_(p.optional<std::int32_t>("rank", 16, 1, 4096, "width of the gate's query and key that is priced where no weights are given")),
        gate_sinks_(p.optional<std::int32_t>("gate_sinks", 16, 1, 4096, "learned sink keys that are priced where no weights are given")),
        sinks_(p.optional<std::int32_t>("sinks_tokens", 4, 0, 1 << 20, "first tokens, always kept")),
        recent_(p.optional<std::int32_t>("recent_tokens", 32, 0, 1 << 20, "latest tokens that are never evicted")) {}

  [[nodiscard]] Needs needs() const override { return {.hidden = true, .weights = weights_ == nullptr}; }
  void set_weights(const std::shared_ptr<const TrainedTensors>& weights) override {
    weights->require("layers.0.q_norm.weight");
    weights->require("layers.0.k_base");
    rank_ = extent(weights->shape("layers.0.q_norm.weight"), 1);
    gate_sinks_ = extent(weights->shape("layers.0.k_base"), 2);
    weights_ = weights;
  }
  [[nodiscard]] Protected protects() const override { return {sinks_, recent_}; }

  void observe(LayerStep& step) override {
    const std::int32_t* news = per_sequence(step, [](const SeqStep& seq) { return seq.new_tokens; });
    TokenModel op{.kv = step.kv,
                  .kind = TokenModel::Kind::kGate,
                  .count = news,
                  .from_end = news,
                  .channel = first_word(),
                  .hidden_dim = step.model.hidden_dim,
                  .mid_dim = rank_,
                  .sinks = gate_sinks_,
                  .hidden = step.in.hidden.data()};
    if (has_data(step)) {
      op.w1 = data(step, "q_proj.weight"), op.b1 = data(step, "q_proj.bias"), op.w2 = data(step, "k_proj.weight"), op.b2 = data(step, "b");
      op.q_norm = data(step, "q_norm.weight"), op.k_norm = data(step, "k_norm.weight"), op.k_base = data(step, "k_base");
    }
    step.ops(op);
  }

 private:
  [[nodiscard]] std::vector<Tensor> tensors(std::int32_t l, const ModelShape& model) const override {
    const std::int64_t heads = model.kv_heads, group = model.group(), r = rank_, d = model.hidden_dim;
    constexpr const char* kOf = "as published";
    return {{name(l, "q_proj.weight"), {heads * group * r, d}, kOf},
            {name(l, "q_proj.bias"), {heads * group * r}, kOf},
            {name(l, "k_proj.weight"), {heads * r, d}, kOf},
            {name(l, "q_norm.weight"), {r}, kOf},
            {name(l, "k_norm.weight"), {r}, kOf},
            {name(l, "k_base"), {heads, 1, gate_sinks_, r}, kOf},
            {name(l, "b"), {heads, 1, group}, kOf}};
  }
  // From the end; 1 if missing, which refuses() reports.
  static std::int32_t extent(const std::vector<std::int64_t>& shape, std::size_t from_end) {
    return shape.size() < from_end ? 1 : static_cast<std::int32_t>(shape[shape.size() - from_end]);
  }

  std::int32_t rank_, gate_sinks_, sinks_, recent_;
};

KVLAB_REGISTER(Scorer, HiddenGate, "hidden_gate", "a small trained gate of the attention layer's input predicts the score",
               "Fast KVzip: Kim et al. 2026, arXiv:2601.17668");

// Log KVzip+ scores, computed once per token; linear, or two layers with GELU. Tensors layers.L.NAME as published.
class HiddenSurrogate final : public TrainedScorer {
 public:
  explicit HiddenSurrogate(Params& p)
      : mid_dim_(p.optional<std::int32_t>("middle_dim", 512, 0, 1 << 16,
                                          "width between the two layers that is priced where no weights are given; 0: one layer")),
        sinks_(p.optional<std::int32_t>("sinks_tokens", 0, 0, 1 << 20, "first tokens, always kept")),
        recent_(p.optional<std::int32_t>("recent_tokens", 0, 0, 1 << 20, "latest tokens, always kept")) {}
  [[nodiscard]] bool is_order_free(const FewTokens&) const override { return true; }

  [[nodiscard]] Needs needs() const override { return {.hidden = true, .weights = weights_ == nullptr}; }
  void set_weights(const std::shared_ptr<const TrainedTensors>& weights) override {
    const bool is_linear = weights->has("layers.0.weight");
    weights->require(is_linear ? "layers.0.weight" : "layers.0.0.weight");
    const std::vector<std::int64_t>& shape = weights->shape(is_linear ? "layers.0.weight" : "layers.0.0.weight");
    mid_dim_ = is_linear ? 0 : static_cast<std::int32_t>(shape.front());
    weights_ = weights;
  }
  [[nodiscard]] Protected protects() const override { return {sinks_, recent_}; }

  void observe(LayerStep& step) override {
    const std::int32_t* news = per_sequence(step, [](const SeqStep& seq) { return seq.new_tokens; });
    TokenModel op{.kv = step.kv,
                  .count = news,
                  .from_end = news,
                  .channel = first_word(),
                  .hidden_dim = step.model.hidden_dim,
                  .mid_dim = mid_dim_,
                  .hidden = step.in.hidden.data()};
    if (has_data(step)) {
      op.w1 = data(step, mid_dim_ == 0 ? "weight" : "0.weight"), op.b1 = data(step, mid_dim_ == 0 ? "bias" : "0.bias");
      if (mid_dim_ > 0) op.w2 = data(step, "2.weight"), op.b2 = data(step, "2.bias");
    }
    step.ops(op);
  }

 private:
  [[nodiscard]] std::vector<Tensor> tensors(std::int32_t l, const ModelShape& model) const override {
    const std::string at = mid_dim_ == 0 ? "" : "0.";
    const std::int64_t first = mid_dim_ == 0 ? model.kv_heads : mid_dim_;
    constexpr const char* kOf = "outputs, inputs";
    std::vector<Tensor> all{{name(l, at + "weight"), {first, model.hidden_dim}, kOf}, {name(l, at + "bias"), {first}, kOf}};
    if (mid_dim_ == 0) return all;
    all.push_back({name(l, "2.weight"), {model.kv_heads, mid_dim_}, kOf});
    all.push_back({name(l, "2.bias"), {model.kv_heads}, kOf});
    return all;
  }

  std::int32_t mid_dim_, sinks_, recent_;
};

KVLAB_REGISTER(Scorer, HiddenSurrogate, "hidden_surrogate", "a small trained model of the attention layer's input predicts the score",
               "KVzap: Jegou and Jeblick 2026, arXiv:2601.07891");

// Predicts a prompt token's largest future logit per KV head, before RoPE; 0 for decoded tokens.
class RetainingHeads final : public TrainedScorer {
 public:
  explicit RetainingHeads(Params& p)
      : mid_dim_(p.optional<std::int32_t>("middle_dim", 1024, 1, 1 << 16,
                                          "width between the two layers that is priced where no weights are given")),
        recent_(p.optional<std::int32_t>("recent_tokens", 2500, 0, 1 << 20, "latest tokens that are never evicted")) {}

  [[nodiscard]] Needs needs() const override { return {.pre_rope_queries = true, .pre_rope_keys = true, .weights = weights_ == nullptr}; }
  void set_weights(const std::shared_ptr<const TrainedTensors>& weights) override {
    weights->require(name(0, "fc1.weight"));
    mid_dim_ = static_cast<std::int32_t>(weights->shape(name(0, "fc1.weight")).front());
    weights_ = weights;
  }
  [[nodiscard]] Protected protects() const override { return {0, recent_}; }

  void observe(LayerStep& step) override {
    const std::int32_t* news =
        per_sequence(step, [](const SeqStep& seq) { return std::max(0, std::min(seq.end(), seq.prompt_tokens) - seq.seen_tokens); });
    if (std::all_of(news, news + step.seqs.size(), [](std::int32_t n) { return n == 0; })) return;
    TokenModel op{.kv = step.kv,
                  .kind = TokenModel::Kind::kQkv,
                  .count = news,
                  .from_end = per_sequence(step, [](const SeqStep& seq) { return seq.new_tokens; }),
                  .channel = first_word(),
                  .mid_dim = mid_dim_,
                  .queries = step.in.pre_rope_queries.data(),
                  .keys = step.in.pre_rope_keys.data(),
                  .begin = per_sequence(step, [](const SeqStep& seq) { return seq.seen_tokens; })};
    if (has_data(step)) op.w1 = data(step, "fc1.weight"), op.w2 = data(step, "fc2.weight");
    step.ops(op);
  }

 private:
  [[nodiscard]] std::vector<Tensor> tensors(std::int32_t l, const ModelShape& model) const override {
    const std::int64_t width = std::int64_t{model.q_heads + 2 * model.kv_heads} * model.head_dim;
    return {{name(l, "fc1.weight"), {mid_dim_, width}, "middle, channels of q, k and v"},
            {name(l, "fc2.weight"), {model.kv_heads, mid_dim_}, "KV heads, middle"}};
  }

  std::int32_t mid_dim_, recent_;
};

KVLAB_REGISTER(Scorer, RetainingHeads, "retaining_heads", "a small trained model of a token's query, key and value predicts the score",
               "Locret: Huang et al. 2024, arXiv:2410.01805");

}  // namespace

}  // namespace kvlab
