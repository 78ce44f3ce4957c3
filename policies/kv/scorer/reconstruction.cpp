#include "kernels/attention/pass_attention/pass_attention.h"
#include "kernels/score/reduce_heads_op.h"
#include "policies/kv/scorer/score_pool.h"
#include "policies/kv/scorer/scorer.h"
#include "policies/kv/step_arrays.h"

namespace kvlab {

namespace {

// The softmax covers sinks, the chunk's cached tokens and the repetition. `gradient` weighs by the effect on the last hidden states
// (KVgrad).
class Reconstruction final : public Scorer {
 public:
  explicit Reconstruction(Params& p)
      : pass_(p.choice("pass", {{"reconstruct", false}, {"repeat", true}}, false,
                       "an instruction and the prompt's chunks again (KVzip), or the prompt alone in one piece (KVCompose)")
                  ? passes::kRepeat
                  : passes::kReconstruct),
        sinks_(p.optional<std::int32_t>("sinks_tokens", 4, 0, 1 << 20, "first tokens, seen in the softmax of every chunk")),
        protects_(p.flag("protect_sinks", true, "the first tokens stay; kvpress lets the first chunk's scores take their place")),
        group_(p.choice("group", {{"max", PassAttention::Group::kMax}, {"mean", PassAttention::Group::kMean}}, PassAttention::Group::kMax,
                        "how query heads that share a KV head vote")),
        norms_(p.flag("norms", false,
                      "KVzip+: attention times the value's size in the layer's output, over the size of the querying token's hidden state")
                   ? Norms::kHidden
                   : Norms::kNone) {
    if (!p.flag("gradient", false,
                "KVgrad: attention times the value's size in the layer's output and the size of the gradient of the last hidden states' "
                "squares with respect to the querying token there; chunks of 512 tokens; with backend cpu"))
      return;
    if (norms_ != Norms::kNone) p.fail_at("gradient", "'norms' and 'gradient' exclude each other");
    if (pass_ == passes::kRepeat) p.fail_at("gradient", "it needs 'pass: reconstruct'");
    norms_ = Norms::kGradient;
    pass_ = passes::kReconstructGradient;
  }

  [[nodiscard]] Needs needs() const override {
    Needs needs{.output_weights = norms_ != Norms::kNone, .pass = pass_, .pass_hidden = norms_ == Norms::kHidden};
    if (norms_ == Norms::kGradient) needs.run_only_on_cpu("has a backward pass");
    return needs;
  }
  [[nodiscard]] Protected protects() const override { return {protects_ ? sinks_ : 0, 0}; }

  void score(LayerStep& step, float* scores) override {
    step.ops(PassAttention{.kv = step.kv,
                           .pass = step.in.pass,
                           .sinks = sinks_,
                           .group = group_,
                           .norms = norms_,
                           .w_o = step.in.w_o,
                           .hidden_dim = step.model.hidden_dim,
                           .scores = scores});
  }

 private:
  using Norms = PassAttention::Norms;
  std::string pass_;
  std::int32_t sinks_;
  bool protects_;
  PassAttention::Group group_;
  Norms norms_;
};

KVLAB_REGISTER(Scorer, Reconstruction, "reconstruction", "largest attention received when the model repeats the prompt",
               "KVzip: Kim et al. 2025, arXiv:2505.23416, eq. 2");

// By the pass "lookahead"; LAQ++ with a window.
class Lookahead final : public Scorer {
 public:
  explicit Lookahead(Params& p)
      : window_(p.optional<std::int32_t>("window_tokens", 8, 0, 4096, "last prompt queries that vote too; their tokens stay")),
        pool_(p, ScorePooling::kMax, 7) {}

  [[nodiscard]] Needs needs() const override { return {.window_queries = window_, .pass = passes::kLookahead}; }
  [[nodiscard]] Protected protects() const override { return {0, window_}; }

  void score(LayerStep& step, float* scores) override {
    step.ops(PassAttention{.kv = step.kv,
                           .pass = step.in.pass,
                           .queries = PassAttention::Reduce::kSum,
                           .group = PassAttention::Group::kMean,
                           .scores = scores});
    const std::vector<Queries> window = last_queries(step.in.window, window_, step.model);
    if (window_ > 0) {
      step.ops(AttentionStats{.kv = step.kv, .queries = window.data(), .sum = scores});
    }
    pool_.smooth(
        step, [&](std::int32_t) { return window_; }, scores);
  }

 private:
  std::int32_t window_;
  ScorePool pool_;
};

KVLAB_REGISTER(Scorer, Lookahead, "lookahead", "attention of pseudo tokens decoded ahead, and of the prompt's last queries",
               "LAQ: Wang et al. 2025, arXiv:2505.20334");

// A chat template (StreamMem) or prompt windows (EpiCache). The softmax includes earlier appended tokens.
class AppendedAttention final : public Scorer {
 public:
  explicit AppendedAttention(Params& p)
      : pass_(p.choice("pass", {{"template", false}, {"windows", true}}, false,
                       "what is appended: the template's tokens before an answer, or windows of the prompt that are most like all of it")
                  ? passes::kWindows
                  : passes::kTemplate),
        queries_(p.choice("queries", {{"sum", PassAttention::Reduce::kSum}, {"max", PassAttention::Reduce::kMax}},
                          PassAttention::Reduce::kSum, "how the appended tokens vote")),
        group_(p.choice("group", {{"mean", PassAttention::Group::kMean}, {"max", PassAttention::Group::kMax}}, PassAttention::Group::kMean,
                        "how query heads that share a KV head vote")),
        shares_heads_(
            p.choice("heads", {{"shared", true}, {"own", false}}, true, "the mean over KV heads for all of them, or one score each")) {}

  [[nodiscard]] Needs needs() const override { return {.pass = pass_}; }

  void score(LayerStep& step, float* scores) override {
    step.ops(PassAttention{.kv = step.kv, .pass = step.in.pass, .queries = queries_, .group = group_, .scores = scores});
    if (shares_heads_) step.ops(ReduceHeads{step.kv, ReduceHeads::Kind::kMean, scores});
  }

 private:
  std::string pass_;
  PassAttention::Reduce queries_;
  PassAttention::Group group_;
  bool shares_heads_;
};

KVLAB_REGISTER(Scorer, AppendedAttention, "appended_attention", "attention of tokens appended after each chunk in place of a question",
               "StreamMem: Yang et al. 2025, arXiv:2508.15717. EpiCache: Kim et al. 2025, arXiv:2509.17396");

}  // namespace

}  // namespace kvlab
