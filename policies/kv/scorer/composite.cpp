#include <algorithm>

#include "base/error.h"
#include "kernels/score/protect_op.h"
#include "kernels/score/reduce_heads_op.h"
#include "kernels/score/score_map_op.h"
#include "kernels/score/token_norms_op.h"
#include "policies/kv/scorer/diversify_op.h"
#include "policies/kv/scorer/representatives_op.h"
#include "policies/kv/scorer/scorer_wrapper.h"

namespace kvlab {

namespace {

class Composite final : public ScorerWrapper {
 public:
  explicit Composite(Params& p) : ScorerWrapper(p, "window_attention", {.wrapper = "composite", .adds_scores = true}) {}

  void score(LayerStep& step, float* scores) override {
    const KvRows& kv = step.kv;
    inner().score(step, scores);
    float* mean = step.ops.floats(kv.total());
    step.ops(ScoreMap{kv.num_rows, kv.first, ScoreMap::Kind::kPlus, scores, 1.0F, 0.0F, false, nullptr, nullptr, mean});
    step.ops(ReduceHeads{kv, ReduceHeads::Kind::kMean, mean});
    step.ops(ScoreMap{kv.num_rows, kv.first, ScoreMap::Kind::kPlus, scores, 1.0F, 0.0F, true, mean, nullptr, scores});
  }
};

KVLAB_REGISTER(Scorer, Composite, "composite", "another score plus its mean over heads", "KVCompose: Akulov et al. 2025, arXiv:2509.05165");

// The most similar source decides (ours), since the product underflows.
class Graph final : public ScorerWrapper {
 public:
  explicit Graph(Params& p)
      : ScorerWrapper(p, "window_attention", {.wrapper = "graph"}),
        sources_(p.optional<double>("sources_frac", 0.5, 0.0, 1.0, "share of the budget whose tokens decay the others")),
        product_(p.choice("combine", {{"max", false}, {"product", true}}, false, "decay by the most similar source, or by all of them")) {}

  [[nodiscard]] bool ranks_after_counts() const override { return true; }
  void refine(LayerStep& step, std::int32_t* keep, float* scores) override {
    inner().refine(step, keep, scores);
    const std::int32_t* sources = per_row(step, [&](std::int32_t r) { return static_cast<std::int32_t>(sources_ * keep[r]); });
    step.ops(Diversify{step.kv, sources, product_, scores});
  }

 private:
  double sources_;
  bool product_;
};

KVLAB_REGISTER(Scorer, Graph, "graph", "another score, decayed by likeness to the best tokens' keys",
               "GraphKV: Li et al. 2025, arXiv:2509.00388");

// Section 3.2 (text prior). Image tokens have one id; without it scores are unchanged.
class TextFirst final : public ScorerWrapper {
 public:
  explicit TextFirst(Params& p)
      : ScorerWrapper(p, "accumulated_attention", {.wrapper = "text_first"}),
        image_id_(p.optional<std::int32_t>("image_id", -1, -1, 1 << 30, "id of image tokens; -1: the prompt has none")) {}

  [[nodiscard]] Needs needs() const override {
    Needs needs = ScorerWrapper::needs();
    needs.token_ids |= image_id_ >= 0;
    return needs;
  }
  void score(LayerStep& step, float* scores) override {
    inner().score(step, scores);
    if (image_id_ < 0) return;
    const std::int32_t sequences = step.kv.num_sequences();
    const std::int64_t* const first =
        prefix_sums(step.ops, sequences, [&](std::int32_t s) { return step.seqs[static_cast<std::size_t>(s)].end(); });
    std::int32_t* const ids = step.ops.computes() ? step.ops.host_ints(first[sequences]) : nullptr;
    for (std::int32_t s = 0; s < sequences && ids != nullptr; ++s)
      std::copy_n(step.in.ids[static_cast<std::size_t>(s)], first[s + 1] - first[s], ids + first[s]);
    step.ops(Protect{.kv = step.kv, .scores = scores, .lowers = true, .ids_first = first, .ids = ids, .id = image_id_});
  }

 private:
  std::int32_t image_id_;
};

KVLAB_REGISTER(Scorer, TextFirst, "text_first", "another score; text outranks image tokens", "LOOK-M: Wan et al. 2024, arXiv:2406.18139");

class ProtectedSpan final : public ScorerWrapper {
 public:
  explicit ProtectedSpan(Params& p)
      : ScorerWrapper(p, "window_attention", {.wrapper = "whitelist"}),
        begin_(p.optional<std::int32_t>("begin_tokens", 0, 0, 1 << 26, "position of the first token")),
        count_(p.required<std::int32_t>("span_tokens", 1, 1 << 26, "tokens that always stay")) {}

  void score(LayerStep& step, float* scores) override {
    inner().score(step, scores);
    const std::int32_t* begin = per_sequence(step, [&](const SeqStep&) { return begin_; });
    const std::int32_t* end = per_sequence(step, [&](const SeqStep&) { return begin_ + count_; });
    step.ops(Protect{step.kv, begin, end, scores, true});
  }

 private:
  std::int32_t begin_, count_;
};

KVLAB_REGISTER(Scorer, ProtectedSpan, "whitelist", "another score; the tokens of one span always stay",
               "The Pitfalls of KV Cache Compression: Chen et al. 2025, arXiv:2510.00231");

// First tokens have small values, so they are protected.
class ValueAware final : public ScorerWrapper {
 public:
  explicit ValueAware(Params& p)
      : ScorerWrapper(p, "accumulated_attention", {.wrapper = "value_aware"}),
        norm_(p.choice("norm", {{"l1", TokenNorms::Kind::kL1}, {"l2", TokenNorms::Kind::kL2}}, TokenNorms::Kind::kL1, "norm of the value")),
        sinks_(p.optional<std::int32_t>("sinks_tokens", 20, 0, 1 << 20, "first tokens, always kept")) {}

  [[nodiscard]] Protected protects() const override {
    Protected all = inner().protects();
    all.sinks = std::max(all.sinks, sinks_);
    return all;
  }

  [[nodiscard]] bool is_order_free(const FewTokens& few) const override { return inner().is_order_free(few); }
  void score(LayerStep& step, float* scores) override {
    const KvRows& kv = step.kv;
    inner().score(step, scores);
    float* norms = step.ops.floats(kv.total());
    step.ops(TokenNorms{kv, TokenNorms::Of::kValue, norm_, norms});
    step.ops(ScoreMap{kv.num_rows, kv.first, ScoreMap::Kind::kTimes, scores, 1.0F, 0.0F, true, norms, nullptr, scores});
  }

 private:
  TokenNorms::Kind norm_;
  std::int32_t sinks_;
};

KVLAB_REGISTER(Scorer, ValueAware, "value_aware", "another score times the L1 norm of the value",
               "VATP: Guo et al. 2024, arXiv:2406.12335");

// One set for all heads.
class RepresentativeTokens final : public ScorerWrapper {
  using Anchor = Representatives::Anchor;

 public:
  explicit RepresentativeTokens(Params& p)
      : ScorerWrapper(p, "window_attention", {.wrapper = "representatives"}),
        share_(p.optional<double>("representatives_frac", 0.25, 0.0, 1.0, "share of the budget that goes to representatives")),
        anchor_(p.choice("anchor",
                         {{"mean", Anchor::kMajority},
                          {"zeros", Anchor::kZeros},
                          {"ones", Anchor::kOnes},
                          {"alternating", Anchor::kAlternating},
                          {"random", Anchor::kRandom}},
                         Anchor::kMajority, "signature that distances are measured from")) {}

  [[nodiscard]] EqualHeads equal_heads() const override { return EqualHeads::kLeft; }

  [[nodiscard]] bool ranks_after_counts() const override { return true; }
  void refine(LayerStep& step, std::int32_t* keep, float* scores) override {
    const KvRows& kv = step.kv;
    inner().refine(step, keep, scores);
    std::int32_t *important = step.ops.host_ints(kv.num_sequences()), *others = step.ops.host_ints(kv.num_sequences());
    for (std::int32_t s = 0; s < kv.num_sequences(); ++s) {
      const std::int32_t row = s * kv.kv_heads;
      for (std::int32_t r = row; r < row + kv.kv_heads; ++r)
        if (keep[r] != keep[row] || kv.len[r] != kv.len[row])
          throw InputError("scorer 'representatives' keeps one set for all KV heads: it needs an allocator that gives them the same count");
      others[s] = static_cast<std::int32_t>(share_ * keep[row]);
      important[s] = keep[row] - others[s];
    }
    step.ops(Representatives{kv, important, others, anchor_, step.seed, scores});
  }

 private:
  double share_;
  Anchor anchor_;
};

KVLAB_REGISTER(Scorer, RepresentativeTokens, "representatives", "the best tokens and some that represent the rest",
               "KVCrush: Jha et al. 2025, arXiv:2503.00022");

}  // namespace

}  // namespace kvlab
