#include <random>

#include "kernels/score/token_scores_op.h"
#include "policies/kv/scorer/scorer.h"
#include "policies/kv/step_arrays.h"

namespace kvlab {

namespace {

class Recency final : public Scorer {
 public:
  explicit Recency(Params& p)
      : sinks_(p.optional<std::int32_t>("sinks_tokens", 4, 0, 1 << 20, "first tokens that are never evicted; 0: first in, first out")) {}
  [[nodiscard]] bool is_order_free(const FewTokens&) const override { return true; }
  [[nodiscard]] bool keeps_latest() const override { return true; }
  [[nodiscard]] bool keeps_no_state() const override { return true; }

  [[nodiscard]] Protected protects() const override { return {sinks_, 0}; }
  [[nodiscard]] bool cuts_affinely() const override { return true; }
  void score(LayerStep& step, float* scores) override {
    step.ops(TokenScores{step.kv, TokenScores::Kind::kPosition, 0, 0, end_positions(step), nullptr, scores});
  }

 private:
  std::int32_t sinks_;
};

KVLAB_REGISTER(Scorer, Recency, "recency", "newest tokens, and the first ones as attention sinks",
               "StreamingLLM: Xiao et al. 2023, arXiv:2309.17453, section 3");

// A fixed draw per (sequence, layer, KV head, position), so repeated cuts sample uniformly.
class RandomScores final : public Scorer {
 public:
  explicit RandomScores(Params& p)
      : sinks_(p.optional<std::int32_t>("sinks_tokens", 0, 0, 1 << 20, "first tokens that are never evicted")),
        recent_(p.optional<std::int32_t>("recent_tokens", 0, 0, 1 << 20, "latest tokens that are never evicted")),
        torch_(p.choice("generator", {{"run", false}, {"torch", true}}, false,
                        "draws of the run's seed, one per token; or those of torch.rand on a CPU, alike in all layers, as in kvpress's "
                        "RandomPress with a seed")),
        generator_(static_cast<std::uint32_t>(p.optional<std::int32_t>("torch_seed", 0, 0, 1 << 30, "of torch's generator"))) {}

  [[nodiscard]] bool is_order_free(const FewTokens&) const override { return !torch_; }
  [[nodiscard]] Protected protects() const override { return {sinks_, recent_}; }
  void score(LayerStep& step, float* scores) override {
    if (torch_) return score_as_torch(step, scores);
    step.ops(TokenScores{step.kv, TokenScores::Kind::kRandom, 0, 0, end_positions(step), sequence_seeds(step), scores});
  }

 private:
  // torch.rand for [kv_heads, n] float32 numbers: the low 24 bits of each number.
  void score_as_torch(LayerStep& step, float* scores) {
    TokenScores drawn{.kv = step.kv, .kind = TokenScores::Kind::kDrawn, .scores = scores};
    while (step.ops.computes() && std::ssize(draws_) < drawn.most_draws())
      draws_.push_back(static_cast<float>(generator_() & 0xFFFFFFU) * 0x1p-24F);
    drawn.draws = draws_.data();
    step.ops(drawn);
  }

  std::int32_t sinks_, recent_;
  bool torch_;
  std::mt19937 generator_;  // Matsumoto and Nishimura 1998
  std::vector<float> draws_;
};

KVLAB_REGISTER(Scorer, RandomScores, "random", "a uniform random sample", "baseline of ours");

// An upper bound, as if all tokens were kept.
class Oracle final : public Scorer {
 public:
  explicit Oracle(Params&) {}
  [[nodiscard]] Needs needs() const override { return {.future_queries = true}; }
  void score(LayerStep& step, float* scores) override { sum_attention(step, step.in.future.data(), scores); }
};

KVLAB_REGISTER(Scorer, Oracle, "oracle", "attention of the queries still to come", "upper bound of ours");

}  // namespace

}  // namespace kvlab
