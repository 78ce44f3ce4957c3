#include <fmt/format.h>

#include <algorithm>

#include "kernels/score/token_scores_op.h"
#include "policies/kv/recipe/trained_tensors.h"
#include "policies/kv/scorer/scorer.h"
#include "policies/kv/scorer/token_model_op.h"

namespace kvlab {

namespace {

// Predicts a prompt token's largest future logit per KV head, before RoPE; 0 for decoded tokens.
class RetainingHeads final : public Scorer {
 public:
  explicit RetainingHeads(Params& p)
      : mid_dim_(p.optional<std::int32_t>("middle_dim", 1024, 1, 1 << 16,
                                          "width between the two layers that is priced where no weights are given")),
        recent_(p.optional<std::int32_t>("recent_tokens", 2500, 0, 1 << 20, "latest tokens that are never evicted")) {}

  [[nodiscard]] Needs needs() const override { return {.pre_rope_queries = true, .pre_rope_keys = true, .weights = weights_ == nullptr}; }
  [[nodiscard]] TakesWeights takes_weights() const override { return TakesWeights::kAlways; }
  void set_weights(const std::shared_ptr<const TrainedTensors>& weights) override {
    weights->require(name(0, 1));
    mid_dim_ = static_cast<std::int32_t>(weights->shape(name(0, 1)).front());
    weights_ = weights;
  }
  [[nodiscard]] std::string refuses(const ModelShape& model) const override {
    if (weights_ == nullptr) return "";
    if (std::string why = weights_->refuses_more_layers(name(model.num_layers, 1), model.num_layers); !why.empty()) return why;
    const std::int64_t width = std::int64_t{model.q_heads + 2 * model.kv_heads} * model.head_dim;
    for (std::int32_t l = 0; l < model.num_layers; ++l) {
      std::string why = weights_->refuses(name(l, 1), {mid_dim_, width}, "middle, channels of q, k and v");
      if (why.empty()) why = weights_->refuses(name(l, 2), {model.kv_heads, mid_dim_}, "KV heads, middle");
      if (!why.empty()) return why;
    }
    return "";
  }
  [[nodiscard]] std::int32_t num_words() const override { return 1; }
  [[nodiscard]] Protected protects() const override { return {0, recent_}; }

  void observe(LayerStep& step) override {
    const auto sequences = static_cast<std::int64_t>(step.seqs.size());
    std::int32_t *begin = step.ops.host_ints(sequences), *news = step.ops.host_ints(sequences), *appended = step.ops.host_ints(sequences);
    for (std::size_t s = 0; s < step.seqs.size(); ++s) {
      begin[s] = step.seqs[s].seen_tokens;
      appended[s] = step.seqs[s].new_tokens;
      news[s] = std::max(0, std::min(step.seqs[s].end(), step.seqs[s].prompt_tokens) - begin[s]);
    }
    if (std::all_of(news, news + sequences, [](std::int32_t n) { return n == 0; })) return;
    TokenModel op{.kv = step.kv,
                  .kind = TokenModel::Kind::kQkv,
                  .count = news,
                  .from_end = appended,
                  .channel = first_word(),
                  .mid_dim = mid_dim_,
                  .queries = step.in.pre_rope_queries.data(),
                  .keys = step.in.pre_rope_keys.data(),
                  .begin = begin};
    if (weights_ != nullptr && step.ops.computes()) {
      const auto data = [&](std::int32_t linear) { return placed_.floats(*weights_, name(step.layer, linear), step.memory()); };
      op.w1 = data(1), op.w2 = data(2);
    }
    step.ops(op);
  }
  void score(LayerStep& step, float* scores) override {
    step.ops(TokenScores{step.kv, TokenScores::Kind::kWord, first_word(), 0, nullptr, nullptr, scores});
  }

 private:
  static std::string name(std::int32_t layer, std::int32_t linear) { return fmt::format("layers.{}.fc{}.weight", layer, linear); }

  std::int32_t mid_dim_, recent_;
  std::shared_ptr<const TrainedTensors> weights_;
  PlacedTensors placed_;
};

KVLAB_REGISTER(Scorer, RetainingHeads, "retaining_heads", "a small trained model of a token's query, key and value predicts the score",
               "Locret: Huang et al. 2024, arXiv:2410.01805");

}  // namespace

}  // namespace kvlab
