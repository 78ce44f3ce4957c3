#include "kernels/score/mark_top_op.h"
#include "kernels/score/token_scores_op.h"
#include "kernels/score/token_stats/token_stats.h"
#include "policies/kv/recent_groups.h"
#include "policies/kv/scorer/scorer.h"
#include "policies/kv/step_arrays.h"

namespace kvlab {

namespace {

// Statistics of the step's queries, in words of each token.
class StatisticsScorer : public Scorer {
 public:
  [[nodiscard]] bool is_order_free(const FewTokens&) const override { return true; }
  [[nodiscard]] Needs needs() const override { return {.step_queries = true}; }
  void score(LayerStep& step, float* scores) final { write(step, kind(), scores); }

 protected:
  [[nodiscard]] virtual TokenScores::Kind kind() const = 0;
  [[nodiscard]] virtual std::int32_t ring_tokens() const { return 0; }
  void write(LayerStep& step, TokenScores::Kind kind, float* scores) const {
    step.ops(TokenScores{step.kv, kind, first_word(), ring_tokens(), end_positions(step), nullptr, scores});
  }
};

// Algorithm 1. `per_query` removes the bias to early tokens (kvpress's ObservedAttention), `weigh_by_visible` that against long rows.
class AccumulatedAttention final : public StatisticsScorer {
 public:
  explicit AccumulatedAttention(Params& p)
      : divide_(p.flag("per_query", false, "divide the sum by the number of queries that saw the token")),
        weigh_(p.flag("weigh_by_visible", false, "multiply each query's attention by the number of tokens it sees")),
        decay_(static_cast<float>(p.optional<double>("decay", 1.0, 0.0, 1.0, "factor on the sum before each further query"))),
        sinks_(p.optional<std::int32_t>("sinks_tokens", 0, 0, 1 << 20, "first tokens that are never evicted")),
        recent_(p.optional<std::int32_t>("recent_tokens", 0, 0, 1 << 20, "latest tokens that are never evicted")),
        recent_frac_(p.optional<double>("recent_frac", 0.5, 0.0, 1.0, "share of the budget for further latest tokens")) {}
  [[nodiscard]] bool keeps_no_state() const override { return true; }

  [[nodiscard]] std::int32_t num_words() const override { return 1; }
  [[nodiscard]] Protected protects() const override { return {sinks_, recent_, false, recent_frac_}; }

  void observe(LayerStep& step) override {
    step.ops(
        TokenStats{.kv = step.kv, .queries = step.in.step.data(), .first_word = first_word(), .decay = decay_, .weigh_by_visible = weigh_});
  }
  [[nodiscard]] TokenScores::Kind kind() const override { return divide_ ? TokenScores::Kind::kMean : TokenScores::Kind::kSum; }

 private:
  bool divide_, weigh_;
  float decay_;
  std::int32_t sinks_, recent_;
  double recent_frac_;
};

KVLAB_REGISTER(Scorer, AccumulatedAttention, "accumulated_attention", "attention received from all queries so far, and the latest tokens",
               "H2O: Zhang et al. 2023, arXiv:2306.14048");

// The temperature rises from 1 to 2 during decode.
class GumbelAttention final : public StatisticsScorer {
 public:
  explicit GumbelAttention(Params& p)
      : max_new_(p.optional<std::int32_t>("max_new_tokens", 512, 1, 1 << 20, "decode steps until the temperature is 2 and stays")),
        recent_frac_(p.optional<double>("recent_frac", 0.5, 0.0, 1.0, "share of the budget for the latest tokens")) {}

  [[nodiscard]] Needs needs() const override { return {.step_queries = true, .cpu_only = "draws its noise in double precision"}; }
  [[nodiscard]] std::int32_t num_words() const override { return 1; }
  [[nodiscard]] Protected protects() const override { return {0, 0, false, recent_frac_}; }

  void observe(LayerStep& step) override {
    const std::int32_t* steps =
        per_sequence(step, [&](const SeqStep& seq) { return std::clamp(seq.end() - seq.prompt_tokens, 0, max_new_); });
    step.ops(TokenStats{.kv = step.kv,
                        .queries = step.in.step.data(),
                        .first_word = first_word(),
                        .noise_seeds = sequence_seeds(step),
                        .noise_steps = steps,
                        .temperature_per_step = 1.0F / static_cast<float>(max_new_)});
  }
  [[nodiscard]] TokenScores::Kind kind() const override { return TokenScores::Kind::kSum; }

 private:
  std::int32_t max_new_;
  double recent_frac_;
};

KVLAB_REGISTER(Scorer, GumbelAttention, "gumbel_attention", "accumulated attention of noisy logits",
               "Keyformer: Adnan et al. 2024, arXiv:2403.09054");

// The recent and sink share of the budget is kept by spread.
class AttentionMeanSpread final : public StatisticsScorer {
 public:
  explicit AttentionMeanSpread(Params& p)
      : sinks_(p.optional<std::int32_t>("sinks_tokens", 4, 0, 1 << 20, "first tokens, counted as of largest spread")),
        newest_(p.optional<std::int32_t>("newest_tokens", 10, 0, 1 << 20, "latest tokens, counted as of largest spread")),
        spread_frac_(p.optional<double>("spread_frac", 0.3, 0.0, 1.0, "share of the budget held for its spread, beside the sinks")) {}

  [[nodiscard]] std::int32_t num_words() const override { return 2; }
  [[nodiscard]] Protected protects() const override { return {sinks_, newest_}; }

  void observe(LayerStep& step) override {
    step.ops(TokenStats{.kv = step.kv, .queries = step.in.step.data(), .kind = TokenStats::Kind::kMoments, .first_word = first_word()});
  }
  [[nodiscard]] TokenScores::Kind kind() const override { return TokenScores::Kind::kMean; }
  [[nodiscard]] bool ranks_after_counts() const override { return true; }
  void refine(LayerStep& step, std::int32_t* keep, float* scores) override {
    float* spread = step.ops.floats(step.kv.total());
    write(step, TokenScores::Kind::kSpread, spread);
    protect_ends(step, protects(), spread);
    const std::int32_t* held = per_row(step, [&](std::int32_t r) { return held_tokens(step.kv.len[r], keep[r]); });
    step.ops(MarkTop{step.kv.num_rows, step.kv.first, spread, held, scores});
  }

 private:
  // Tokens held for their spread in a row of n that keeps B. Victims are among the B - r tokens of smallest spread, r = sinks +
  // floor(spread_frac * B): n - B + r are held, or min(r, B) if candidates are too few.
  [[nodiscard]] std::int32_t held_tokens(std::int32_t n, std::int32_t budget) const {
    const std::int32_t victims = n - budget;
    if (victims <= 0) return 0;
    const std::int32_t reserve = sinks_ + static_cast<std::int32_t>(spread_frac_ * budget);
    return std::min(budget - reserve >= victims ? victims + reserve : reserve, budget);
  }

  std::int32_t sinks_, newest_;
  double spread_frac_;
};

KVLAB_REGISTER(Scorer, AttentionMeanSpread, "attention_mean_spread", "mean attention among tokens of small spread; large spread stays",
               "RoCo: Ren and Zhu 2024, arXiv:2402.06262");

// Important: more attention than an even share of the sequence, or of the held tokens.
class AttentionRecencyRing final : public StatisticsScorer {
 public:
  explicit AttentionRecencyRing(Params& p)
      : window_(p.optional<std::int32_t>("window_tokens", 256, 1, 4096, "latest queries that count; as many latest tokens stay")),
        visible_(p.choice("even_share_of", {{"sequence", false}, {"visible", true}}, false,
                          "the share is 1 / tokens of the sequence, or of those still held")) {}

  [[nodiscard]] std::int32_t num_words() const override { return TokenStats::ring_words(window_); }
  [[nodiscard]] Protected protects() const override { return {0, window_}; }

  void observe(LayerStep& step) override {
    const std::vector<Queries> latest = last_queries(step.in.step, window_, step.model);
    step.ops(TokenStats{.kv = step.kv,
                        .queries = latest.data(),
                        .kind = TokenStats::Kind::kRing,
                        .first_word = first_word(),
                        .ring_tokens = window_,
                        .threshold_by_position = !visible_});
  }
  [[nodiscard]] TokenScores::Kind kind() const override { return TokenScores::Kind::kRingSet; }
  [[nodiscard]] std::int32_t ring_tokens() const override { return window_; }

 private:
  std::int32_t window_;
  bool visible_;
};

KVLAB_REGISTER(Scorer, AttentionRecencyRing, "attention_recency_ring", "to how many of the last queries a token was important",
               "CORM: Dai et al. 2024, arXiv:2404.15949");

// Keeps one bit per token and query.
class LowAttentionCount final : public StatisticsScorer {
 public:
  explicit LowAttentionCount(Params& p)
      : window_(p.optional<std::int32_t>("window_tokens", 400, 1, 4096, "latest queries that count")),
        recent_(p.optional<std::int32_t>("recent_tokens", 10, 0, 1 << 20, "latest tokens that are never evicted")) {}

  [[nodiscard]] std::int32_t num_words() const override { return TokenStats::ring_words(window_); }
  [[nodiscard]] Protected protects() const override { return {0, recent_}; }

  void observe(LayerStep& step) override {
    const std::vector<Queries> latest = last_queries(step.in.step, window_, step.model);
    TokenStats stats{.kv = step.kv, .queries = latest.data(), .kind = TokenStats::Kind::kRing, .first_word = first_word()};
    stats.ring_tokens = window_;
    step.ops(stats);
  }
  [[nodiscard]] TokenScores::Kind kind() const override { return TokenScores::Kind::kRingClear; }
  [[nodiscard]] std::int32_t ring_tokens() const override { return window_; }

 private:
  std::int32_t window_, recent_;
};

KVLAB_REGISTER(Scorer, LowAttentionCount, "low_attention_count", "how rarely the last queries gave a token less than an even share",
               "Scissorhands: Liu et al. 2023, arXiv:2305.17118, algorithm 2");

class RecurrenceInterval final : public StatisticsScorer {
 public:
  explicit RecurrenceInterval(Params& p)
      : threshold_(static_cast<float>(p.optional<double>("attention_frac", 1e-4, 0.0, 1.0, "attention from which a query needs a token"))),
        recent_(p.optional<std::int32_t>("recent_tokens", 128, 0, 1 << 20, "latest tokens that are never evicted")) {}

  [[nodiscard]] std::int32_t num_words() const override { return 2; }
  [[nodiscard]] Protected protects() const override { return {0, recent_}; }

  void observe(LayerStep& step) override {
    TokenStats stats{.kv = step.kv, .queries = step.in.step.data(), .kind = TokenStats::Kind::kRecurrence, .first_word = first_word()};
    stats.group = AttentionStats::Group::kMax;  // one query head suffices
    stats.threshold = threshold_;
    step.ops(stats);
  }
  [[nodiscard]] TokenScores::Kind kind() const override { return TokenScores::Kind::kRecurrence; }

 private:
  float threshold_;
  std::int32_t recent_;
};

KVLAB_REGISTER(Scorer, RecurrenceInterval, "recurrence_interval",
               "how a token's idle time compares with its longest interval of recurrence",
               "LazyEviction: Zhang et al. 2025, arXiv:2506.15969");

// New tokens start with the current time and one hit.
class TopKHits final : public StatisticsScorer {
 public:
  explicit TopKHits(Params& p)
      : counts_(p.choice("rank_by", {{"last", false}, {"count", true}}, false,
                         "position of the last query that hit the token (LRA), or number of hits (LFA)")),
        top_(p.optional<std::int32_t>("top_tokens", 32, 1, 1 << 16, "most attended tokens of a query that count as hit")) {}

  [[nodiscard]] std::int32_t num_words() const override { return 2; }

  void observe(LayerStep& step) override {
    step.ops(TokenStats{
        .kv = step.kv, .queries = step.in.step.data(), .kind = TokenStats::Kind::kTopHits, .first_word = first_word(), .top = top_});
  }
  [[nodiscard]] TokenScores::Kind kind() const override { return counts_ ? TokenScores::Kind::kHits : TokenScores::Kind::kLastHit; }

 private:
  bool counts_;
  std::int32_t top_;
};

KVLAB_REGISTER(Scorer, TopKHits, "topk_hits", "when or how often a token was among a query's most attended",
               "Attendre: Yang and Hua 2024, arXiv:2401.04881");

// A sum per token replaces stored attention rows.
class RecentVotes final : public StatisticsScorer {
 public:
  explicit RecentVotes(Params& p)
      : groups_(p),
        last_weight_(p.optional<double>("last_weight", 1.2, 0, 100, "weight of the last vote; the first has 1, others are between")) {}
  [[nodiscard]] bool keeps_no_state() const override { return true; }

  [[nodiscard]] bool is_order_free(const FewTokens&) const override { return false; }
  [[nodiscard]] std::int32_t num_words() const override { return 1; }

  void observe(LayerStep& step) override {
    const std::int64_t sequences = step.kv.num_sequences();
    std::int32_t *base = step.ops.host_ints(sequences), *recent = step.ops.host_ints(sequences);
    std::vector<Queries> queries;
    for (std::size_t s = 0; s < step.seqs.size(); ++s) {
      const std::int32_t prompt = step.seqs[s].prompt_tokens;
      recent[s] = groups_.recent(prompt), base[s] = prompt - recent[s];
      queries.push_back(last_queries(step.in.step.subspan(s, 1), step.seqs[s].end() - base[s], step.model).front());
    }
    const auto last_weight = static_cast<float>(last_weight_);
    step.ops(AttentionStats{
        .kv = step.kv,
        .queries = queries.data(),
        .votes = {.last_weight = last_weight, .base = base, .recent = recent, .group_tokens = groups_.group_tokens, .word = first_word()}});
  }
  [[nodiscard]] TokenScores::Kind kind() const override { return TokenScores::Kind::kSum; }

 private:
  RecentGroups groups_;
  double last_weight_;
};

KVLAB_REGISTER(Scorer, RecentVotes, "recent_votes", "attention from the queries after a token's group, the later the more",
               "PyramidInfer: Yang et al. 2024, arXiv:2405.12532");

}  // namespace

}  // namespace kvlab
