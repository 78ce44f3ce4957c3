#include <fmt/format.h>

#include "kernels/score/token_scores_op.h"
#include "policies/kv/recipe/trained_tensors.h"
#include "policies/kv/scorer/scorer.h"
#include "policies/kv/scorer/token_model_op.h"

namespace kvlab {

namespace {

// Log KVzip+ scores, computed once per token; linear, or two layers with GELU. Tensors layers.L.NAME as published.
class HiddenSurrogate final : public Scorer {
 public:
  explicit HiddenSurrogate(Params& p)
      : mid_dim_(p.optional<std::int32_t>("middle_dim", 512, 0, 1 << 16,
                                          "width between the two layers that is priced where no weights are given; 0: one layer")),
        sinks_(p.optional<std::int32_t>("sinks_tokens", 0, 0, 1 << 20, "first tokens, always kept")),
        recent_(p.optional<std::int32_t>("recent_tokens", 0, 0, 1 << 20, "latest tokens, always kept")) {}
  [[nodiscard]] bool is_order_free(const FewTokens&) const override { return true; }

  [[nodiscard]] Needs needs() const override { return {.hidden = true, .weights = weights_ == nullptr}; }
  [[nodiscard]] TakesWeights takes_weights() const override { return TakesWeights::kAlways; }
  void set_weights(const std::shared_ptr<const TrainedTensors>& weights) override {
    const bool is_linear = weights->has("layers.0.weight");
    weights->require(is_linear ? "layers.0.weight" : "layers.0.0.weight");
    const std::vector<std::int64_t>& shape = weights->shape(is_linear ? "layers.0.weight" : "layers.0.0.weight");
    mid_dim_ = is_linear ? 0 : static_cast<std::int32_t>(shape.front());
    weights_ = weights;
  }
  [[nodiscard]] std::string refuses(const ModelShape& model) const override {
    if (weights_ == nullptr) return "";
    if (std::string why = weights_->refuses_more_layers(name(model.num_layers, mid_dim_ == 0 ? "weight" : "0.weight"), model.num_layers);
        !why.empty())
      return why;
    for (std::int32_t l = 0; l < model.num_layers; ++l) {
      const std::int64_t first = mid_dim_ == 0 ? model.kv_heads : mid_dim_;
      for (const auto& [tensor, shape] : tensors(l, first, model))
        if (const std::string why = weights_->refuses(tensor, shape, "outputs, inputs"); !why.empty()) return why;
    }
    return "";
  }
  [[nodiscard]] std::int32_t num_words() const override { return 1; }
  [[nodiscard]] Protected protects() const override { return {sinks_, recent_}; }

  void observe(LayerStep& step) override {
    const auto sequences = static_cast<std::int64_t>(step.seqs.size());
    std::int32_t* news = step.ops.host_ints(sequences);
    for (std::size_t s = 0; s < step.seqs.size(); ++s) news[s] = step.seqs[s].new_tokens;
    TokenModel op{.kv = step.kv,
                  .count = news,
                  .from_end = news,
                  .channel = first_word(),
                  .hidden_dim = step.model.hidden_dim,
                  .mid_dim = mid_dim_,
                  .hidden = step.in.hidden.data()};
    if (weights_ != nullptr && step.ops.computes()) {
      const auto data = [&](const char* tensor) { return placed_.floats(*weights_, name(step.layer, tensor), step.memory()); };
      op.w1 = data(mid_dim_ == 0 ? "weight" : "0.weight"), op.b1 = data(mid_dim_ == 0 ? "bias" : "0.bias");
      if (mid_dim_ > 0) op.w2 = data("2.weight"), op.b2 = data("2.bias");
    }
    step.ops(op);
  }
  void score(LayerStep& step, float* scores) override {
    step.ops(TokenScores{step.kv, TokenScores::Kind::kWord, first_word(), 0, nullptr, nullptr, scores});
  }

 private:
  static std::string name(std::int32_t layer, const std::string& tensor) { return fmt::format("layers.{}.{}", layer, tensor); }
  [[nodiscard]] std::vector<std::pair<std::string, std::vector<std::int64_t>>> tensors(std::int32_t layer, std::int64_t first,
                                                                                       const ModelShape& model) const {
    const std::string at = mid_dim_ == 0 ? "" : "0.";
    std::vector<std::pair<std::string, std::vector<std::int64_t>>> all{{name(layer, at + "weight"), {first, model.hidden_dim}},
                                                                       {name(layer, at + "bias"), {first}}};
    if (mid_dim_ == 0) return all;
    all.push_back({name(layer, "2.weight"), {model.kv_heads, mid_dim_}});
    all.push_back({name(layer, "2.bias"), {model.kv_heads}});
    return all;
  }

  std::int32_t mid_dim_, sinks_, recent_;
  std::shared_ptr<const TrainedTensors> weights_;
  PlacedTensors placed_;
};

KVLAB_REGISTER(Scorer, HiddenSurrogate, "hidden_surrogate", "a small trained model of the attention layer's input predicts the score",
               "KVzap: Jegou and Jeblick 2026, arXiv:2601.07891");

}  // namespace

}  // namespace kvlab
