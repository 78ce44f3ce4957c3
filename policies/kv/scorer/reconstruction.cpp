#include "kernels/attention/pass_attention/pass_attention.h"
#include "policies/kv/scorer/scorer.h"
#include "policies/kv/scorer/step_arrays.h"

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

}  // namespace

}  // namespace kvlab
