#include <algorithm>
#include <vector>

#include "base/error.h"
#include "kernels/score/mark_top_op.h"
#include "kernels/score/protect_op.h"
#include "kernels/score/reduce_heads_op.h"
#include "kernels/score/score_map_op.h"
#include "kernels/score/token_norms_op.h"
#include "policies/kv/scorer/representatives_op.h"
#include "policies/kv/scorer/scorer_wrapper.h"
#include "policies/kv/step_arrays.h"

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

// Ours: equal spans, optionally the question as one; quotas proportional to length, at least 1. Protected tokens count towards their span;
// if they exceed its quota, other spans share the rest.
class Fair final : public ScorerWrapper {
 public:
  explicit Fair(Params& p)
      : ScorerWrapper(p, "window_attention", {.wrapper = "fair"}),
        span_(p.optional<std::int32_t>("span_tokens", 256, 1, 1 << 26, "tokens of a span")),
        question_(p.flag("question", false, "the question is a span of its own")),
        quota_frac_(p.optional<double>("quota_frac", 0.0, 0.0, 1.0,
                                       "share of each span kept, rounded down, at least 1; 0: its share of the budget")) {}

  [[nodiscard]] Needs needs() const override {
    Needs needs = inner().needs();
    needs.question |= question_;
    return needs;
  }

  [[nodiscard]] bool ranks_after_counts() const override { return true; }
  void refine(LayerStep& step, std::int32_t* keep, float* scores) override {
    const KvRows& kv = step.kv;
    inner().refine(step, keep, scores);
    begins_.clear();
    quotas_.clear();
    std::int64_t *first = step.ops.host_longs(kv.num_sequences() + 1), *quota_first = step.ops.host_longs(kv.num_rows + 1);
    first[0] = quota_first[0] = 0;
    for (std::int32_t s = 0; s < kv.num_sequences(); ++s) {
      add_spans(step.seqs[static_cast<std::size_t>(s)]);
      first[s + 1] = static_cast<std::int64_t>(begins_.size());
      for (std::int32_t r = s * kv.kv_heads; r < (s + 1) * kv.kv_heads; ++r) {
        add_quotas(first[s], step.seqs[static_cast<std::size_t>(s)].end(), kv.len[r], keep[r]);
        quota_first[r + 1] = static_cast<std::int64_t>(quotas_.size());
      }
    }
    MarkTop best{kv.num_rows, kv.first, scores, quotas_.data(), scores, std::numeric_limits<float>::max()};
    best.by_span = true, best.counts_first = quota_first;
    best.kv = kv, best.span_first = first, best.span_begin = begins_.data();
    step.ops(best);
  }

 private:
  void add_spans(const SeqStep& seq) {
    const std::int32_t question = question_ && seq.question_begin > 0 && seq.question_begin < seq.end() ? seq.question_begin : seq.end();
    for (std::int32_t at = 0; at < std::max(question, 1); at += span_) begins_.push_back(at);
    if (question < seq.end()) begins_.push_back(question);
  }

  struct Span {
    std::int32_t tokens = 0, is_protected = 0;
    bool is_full = false;  // of protected tokens
  };
  std::vector<Span> spans_of(std::int64_t first, std::int32_t end, std::int32_t keep) const {
    const Protected p = protects();
    const std::int32_t sinks = std::min(p.sinks, end), recent = std::max(sinks, end - p.recent_of(keep));
    std::vector<Span> spans;
    for (auto j = static_cast<std::size_t>(first); j < begins_.size(); ++j) {
      const std::int32_t begin = begins_[j], next = j + 1 < begins_.size() ? begins_[j + 1] : end;
      spans.push_back({next - begin, std::max(0, std::min(next, sinks) - begin) + std::max(0, next - std::max(begin, recent)), false});
    }
    return spans;
  }

  void add_quotas(std::int64_t first, std::int32_t end, std::int32_t len, std::int32_t& keep) {
    const std::vector<Span> spans = spans_of(first, end, keep);
    if (quota_frac_ == 0) return share_budget(spans, end, keep);
    std::int32_t left = len;
    for (const Span& s : spans) {
      quotas_.push_back(std::min(left, std::max({1, static_cast<std::int32_t>(s.tokens * quota_frac_), s.is_protected})));
      left -= quotas_.back();
    }
    keep = len - left;  // fixed span shares make the budget
  }

  // Largest remainders; sums to the budget if it has a token per span.
  void share_budget(std::vector<Span> spans, std::int32_t length, std::int32_t left) {
    const auto share = [&](const Span& s) { return static_cast<double>(left) * s.tokens / std::max(1, length); };
    const auto overflows = [&](const Span& s) { return !s.is_full && s.is_protected > share(s); };
    for (auto s = spans.begin(); (s = std::find_if(spans.begin(), spans.end(), overflows)) != spans.end();) {
      s->is_full = true;
      left = std::max(0, left - s->is_protected), length -= s->tokens;
    }
    std::vector<double> shares;
    for (const Span& s : spans) shares.push_back(share(s));
    std::vector<std::pair<double, std::size_t>> remainders;
    for (std::size_t j = 0; j < spans.size(); ++j) {
      const std::int32_t quota =
          spans[j].is_full ? spans[j].is_protected : std::min(left, std::max(1, static_cast<std::int32_t>(shares[j])));
      if (!spans[j].is_full) left -= quota, remainders.emplace_back(quota - shares[j], quotas_.size());
      quotas_.push_back(quota);
    }
    std::sort(remainders.begin(), remainders.end());
    for (std::size_t j = 0; j < remainders.size() && left > 0; ++j, --left) ++quotas_[remainders[j].second];
  }

  std::int32_t span_;
  bool question_;
  double quota_frac_;
  std::vector<std::int32_t> begins_, quotas_;
};

KVLAB_REGISTER(Scorer, Fair, "fair", "another score, with a quota for every span of the prompt",
               "The Pitfalls of KV Cache Compression: Chen et al. 2025, arXiv:2510.00231");

// For the trigger `scope`. Only the inner scorer's first stage runs.
class ScopeScorer final : public Scorer {
 public:
  explicit ScopeScorer(Params& p) {
    auto [name, parameters] = p.named("prompt", "window_attention", "scorer that cuts the prompt");
    if (p.is_describing()) return;
    prompt_ = ScorerRegistry::make(name, parameters, "scorer");
    if (const std::string why = why_not_inside({.wrapper = "scope", .refines = false}, *prompt_, name); !why.empty())
      p.fail_at("prompt", why);
  }

  [[nodiscard]] Needs needs() const override {
    Needs needs = prompt_->needs();
    needs.step_queries = true;
    return needs;
  }
  [[nodiscard]] std::int32_t num_words() const override { return prompt_->num_words(); }
  [[nodiscard]] std::string refuses(const ModelShape& model) const override { return prompt_->refuses(model); }
  [[nodiscard]] std::int32_t layer_kind(std::int32_t layer) const override { return prompt_->layer_kind(layer); }
  [[nodiscard]] TakesWeights takes_weights() const override { return prompt_->takes_weights(); }
  void set_weights(const std::shared_ptr<const TrainedTensors>& weights) override { prompt_->set_weights(weights); }
  void forget(std::int32_t index) override { prompt_->forget(index); }
  [[nodiscard]] Protected protects() const override { return prompt_->protects(); }

  [[nodiscard]] bool is_order_free(const FewTokens&) const override { return prompt_->num_words() == 0; }
  void bind(std::int32_t first_word) override {
    Scorer::bind(first_word);
    prompt_->bind(first_word);
  }

  void observe(LayerStep& step) override { prompt_->observe(step); }

  void score(LayerStep& step, float* scores) override {
    std::vector<Queries> current = last_queries(step.in.step, 1, step.model);
    bool all_decode = true, any_decode = false;
    for (std::size_t s = 0; s < current.size(); ++s) {
      if (!step.seqs[s].decoding()) current[s].count = 0;
      any_decode |= step.seqs[s].decoding();
      all_decode &= step.seqs[s].decoding();
    }
    if (!all_decode) prompt_->score(step, scores);
    if (!any_decode) return;
    clear_scores(step, scores, true);
    step.ops(AttentionStats{.kv = step.kv, .queries = current.data(), .sum = scores});
  }

 private:
  std::unique_ptr<Scorer> prompt_;
};

KVLAB_REGISTER(Scorer, ScopeScorer, "scope", "a scorer of its own for the prompt, the current query's attention for decoded tokens",
               "SCOPE: Wu et al. 2024, arXiv:2412.13649");

}  // namespace

}  // namespace kvlab
