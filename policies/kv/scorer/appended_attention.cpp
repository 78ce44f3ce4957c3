#include "kernels/attention/pass_attention/pass_attention.h"
#include "kernels/score/reduce_heads_op.h"
#include "policies/kv/scorer/scorer.h"
#include "policies/kv/scorer/step_arrays.h"

namespace kvlab {

namespace {

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
