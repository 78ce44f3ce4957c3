#include <sstream>

#include "base/ceil_div.h"
#include "kernels/score/pool1d_op.h"
#include "kernels/select/mean_query_op.h"
#include "policies/kv/selector/selection.h"
#include "policies/kv/selector/sentences_op.h"
#include "policies/kv/step_arrays.h"

namespace kvlab {

namespace {

// Candidates: generated tokens and prompt tokens that its last queries attended to.
class Sentence final : public Budgeted<TierSelector> {
 public:
  explicit Sentence(Params& p)
      : Budgeted({p.optional<std::int32_t>("budget_tokens", 1024, 1, 1 << 24, "tokens attended to per KV head")}),
        sinks_(p.optional<std::int32_t>("sink_tokens", 32, 0, 1 << 20, "first tokens attended to")),
        recent_(p.optional<std::int32_t>("recent_tokens", 32, 1, 1 << 20, "newest tokens attended to")),
        factor_(p.optional<std::int32_t>("candidate_factor", 5, 1, 1000, "candidates of the prompt, times the budget")),
        window_(p.optional<std::int32_t>("window_tokens", 32, 1, 4096, "last prompt queries that choose candidates")),
        pool_(p.optional<std::int32_t>("pool_tokens", 7, 1, 1023, "odd width of the maximum over neighbours of their scores")),
        span_(p.optional<std::int32_t>("sentence_tokens", 24, 1, 1 << 16, "tokens of a sentence where no ids close them, and on average")),
        closing_(read_ids(p)) {
    if (pool_ % 2 == 0) p.fail_at("pool_tokens", "'pool_tokens' must be odd");
  }

  [[nodiscard]] Needs needs() const override { return {.step_queries = true, .window_queries = window_, .token_ids = !closing_.empty()}; }
  void step_key(const SeqStep& seq, StepKey& key) const override { key.add(seq.end()); }

  // Mean keys need all keys in every step.
  [[nodiscard]] Lower lower(std::int32_t) const override { return Lower::kValues; }

  void update(LayerStep& step) override {
    split(step);
    const std::vector<Queries> window = last_queries(step.in.window, window_, step.model);
    std::vector<Queries> judges;
    for (std::int32_t s = 0; s < step.kv.num_sequences(); ++s) {
      const auto at = static_cast<std::size_t>(s);
      const SeqStep& seq = step.seqs[at];
      const std::int32_t row = s * step.kv.kv_heads;
      // The step's query judges only if no prompt was seen or the row lost tokens.
      const bool lost = seq.decoding() && !rows_.at(step, row).mark.grew_to(seq, step.kv.len[row]);
      judges.push_back(seq.completes_prompt() ? window[at] : lost ? step.in.step[at] : Queries{});
    }
    if (std::any_of(judges.begin(), judges.end(), [](const Queries& q) { return q.count > 0; })) choose_candidates(step, judges);
    traffic_.begin(step, [&](std::int32_t r) { return held_from(step, r); });
  }

  Selection select(LayerStep& step) override {
    const std::int32_t n = step.kv.num_rows;
    const std::int32_t* tail = per_row(step, [&](std::int32_t r) {
      return std::max(rows_.at(step, r).dense, std::min(older_tokens(step, r), step.kv.len[r] - sizes(step, r).recent));
    });
    const std::int32_t* head = per_row(step, [&](std::int32_t r) { return std::min(sizes(step, r).sinks, rows_.at(step, r).dense); });
    const std::int32_t* candidates =
        per_row(step, [&](std::int32_t r) { return rows_.at(step, r).listed + tail[r] - rows_.at(step, r).dense; });
    const std::int32_t* keep = per_row(step, [&](std::int32_t r) {
      return std::clamp(tokens_of(budget_, step, r) - head[r] - (step.kv.len[r] - tail[r]), 0, candidates[r]);
    });
    bool whole = true;
    for (std::int32_t r = 0; r < n; ++r) whole &= keep[r] == tail[r] - head[r];
    const std::int64_t* first = prefix_sums(step, [&](std::int32_t r) { return keep[r]; });
    const Queries* mean = mean_query(step);
    if (traffic_.reads_all(step, whole)) return {};
    UnitLists lists{.first = first, .unit = take(step, candidates, tail, first, mean)};
    const Selection selection = expand(step, {.lists = lists, .head = head, .tail = tail});
    traffic_.track(step, lists, lists_of(selection), 2LL * step.kv.head_dim * step.kv.kv_bytes);
    return selection;
  }

  // Assumes sentences of average length.
  [[nodiscard]] TierBytes resident(const ModelShape& model, const KvRows& kv, const TierBytes& held) const override {
    std::int64_t on_gpu = 0, sentences = 0;
    for (std::int32_t r = 0; r < kv.num_rows; ++r) {
      on_gpu += std::min(kv.len[r], budget_.of(kv.len[r]));
      sentences += ceil_div(kv.len[r], span_);
    }
    return keep_on_gpu(held, on_gpu, kv.total()).with_gpu(sentences * model.head_dim * model.kv_bytes);
  }

 private:
  // `listed` of the first `dense` tokens, and all later ones. `counted` tokens are in means.
  struct Row {
    RowMark mark;
    std::int32_t dense = 0, listed = 0, counted = 0;
  };

  struct Sizes {
    std::int32_t budget, sinks, recent;
  };
  [[nodiscard]] Sizes sizes(const LayerStep& step, std::int32_t r) const {
    const std::int32_t budget = tokens_of(budget_, step, r);
    if (!is_set_) return {budget, sinks_, recent_};
    return {budget, std::min(sinks_, budget / 4), std::clamp(budget / 2, 1, recent_)};
  }

  std::int32_t head_of(const LayerStep& step, std::int32_t r) override { return sizes(step, r).sinks; }
  std::int32_t held_from(const LayerStep& step, std::int32_t r) override {
    return tokens_of(budget_, step, r) >= step.kv.len[r] ? 0 : rows_.at(step, r).dense;
  }

  static std::vector<std::int32_t> read_ids(Params& p) {
    std::istringstream text(
        p.text("closing_ids", "", "token ids that close a sentence, apart by blanks; empty: sentences of sentence_tokens"));
    std::vector<std::int32_t> ids;
    for (std::int32_t id = 0; text >> id;) ids.push_back(id);
    if (!text.eof()) p.fail_at("closing_ids", "'closing_ids' must be whole numbers apart by blanks");
    std::sort(ids.begin(), ids.end());
    return ids;
  }
  std::int32_t* const* sentence_of(const LayerStep& step) {
    return sentence_of_.sequences(step, [&](std::int32_t s) { return step.seqs[static_cast<std::size_t>(s)].end(); });
  }

  void split(LayerStep& step) {
    const std::int32_t sequences = step.kv.num_sequences();
    SplitSentences sentences{.num_sequences = sequences,
                             .span_tokens = span_,
                             .num_closing = static_cast<std::int32_t>(closing_.size()),
                             .closing = closing_.data(),
                             .ids = step.in.ids.data()};
    std::int32_t *begin = step.ops.host_ints(sequences), *end = step.ops.host_ints(sequences);
    for (std::int32_t s = 0; s < sequences; ++s) {
      const SeqStep& seq = step.seqs[static_cast<std::size_t>(s)];
      std::int32_t& done = split_.of_sequence(step, s);
      begin[s] = done == seq.seen_tokens || done == seq.end() ? done : 0;
      end[s] = done = seq.end();
    }
    sentences.begin = begin, sentences.end = end;
    sentences.sentence_of = sentence_of(step);
    step.ops(sentences);
  }

  // By the judges' attention, smoothed as in SnapKV.
  void choose_candidates(LayerStep& step, const std::vector<Queries>& judges) {
    const std::int32_t n = step.kv.num_rows;
    std::int32_t *keep = step.ops.host_ints(n), *pooled = step.ops.host_ints(n);
    for (std::int32_t r = 0; r < n; ++r) {
      const std::int32_t judging = judges[static_cast<std::size_t>(step.kv.sequence(r))].count;
      keep[r] = 0;
      pooled[r] = std::max(0, step.kv.len[r] - judging);
      if (judging == 0) continue;
      const Sizes size = sizes(step, r);
      const std::int32_t dense = std::max(0, step.kv.len[r] - size.recent);
      keep[r] = static_cast<std::int32_t>(
          std::min<std::int64_t>(static_cast<std::int64_t>(factor_) * size.budget, dense - std::min(dense, size.sinks)));
      rows_.at(step, r) = {{step.kv.len[r], seq_of(step, r).end()}, dense, keep[r], 0};
    }
    AttentionStats stats{.kv = step.kv, .queries = judges.data()};
    float* scores = stats.sum = step.ops.floats(step.kv.total());
    step.ops.zero(scores, step.kv.total());
    step.ops(stats);
    step.ops(Pool1d{n, step.kv.first, nullptr, pooled, scores, pool_, Pool1d::Kind::kMax});
    const std::int32_t* tail = per_row(step, [&](std::int32_t r) { return rows_.at(step, r).dense; });
    mask_ends(step, step.kv.first, per_row(step, [&](std::int32_t r) { return std::min(sizes(step, r).sinks, tail[r]); }), tail, scores);
    step.ops(CopyUnits{.num_rows = n,
                       .lists = best_units(step, step.kv.first, scores, keep),
                       .to = candidates_.rows(step, [&](std::int32_t r) { return rows_.at(step, r).listed; })});
  }

  // One query per sequence.
  const Queries* mean_query(LayerStep& step) {
    const std::int32_t sequences = step.kv.num_sequences(), width = step.model.q_heads * step.model.head_dim;
    std::int32_t* fresh = step.ops.host_ints(sequences);
    for (std::int32_t s = 0; s < sequences; ++s) {
      char& known = knows_sum_.of_sequence(step, s);
      fresh[s] =
          known == 0 || step.seqs[static_cast<std::size_t>(s)].seen_tokens == step.seqs[static_cast<std::size_t>(s)].prompt_tokens ? 1 : 0;
      known = 1;
    }
    float* mean = step.ops.floats(static_cast<std::int64_t>(sequences) * width);
    float* const* sums = sums_.sequences(step, [&](std::int32_t) { return width + 1; });
    step.ops(MeanQuery{sequences, width, step.in.step.data(), mean, MeanQuery::Kind::kSentence, sentence_of(step), fresh, sums});
    means_of_queries_ = queries_over(step, mean);
    return means_of_queries_.data();
  }

  const std::int32_t* take(LayerStep& step, const std::int32_t* candidates, const std::int32_t* tail, const std::int64_t* first,
                           const Queries* query) {
    const std::int32_t n = step.kv.num_rows;
    SentenceMeans means;
    means.kv = step.kv;
    means.sentence_of = sentence_of(step);
    means.listed.rows = candidates_.rows(step, [](std::int32_t) { return 0; });
    means.listed.count = per_row(step, [&](std::int32_t r) { return rows_.at(step, r).listed; });
    means.dense_begin = per_row(step, [&](std::int32_t r) { return rows_.at(step, r).dense; });
    means.dense_end = tail;
    means.fresh = per_row(step, [&](std::int32_t r) { return candidates[r] - rows_.at(step, r).counted; });
    for (std::int32_t r = 0; r < n; ++r) rows_.at(step, r).counted = candidates[r];
    means.means = means_.rows(step, [&](std::int32_t r) { return static_cast<std::int64_t>(candidates[r]) * step.kv.head_dim; });
    means.token = token_.rows(step, [&](std::int32_t r) { return candidates[r]; });
    means.sentence = sentence_.rows(step, [&](std::int32_t r) { return candidates[r]; });
    means.count = per_row(step, [&](std::int32_t r) { return candidates[r]; });
    step.ops(means);
    settle_rows(step, "sentences", means.count);
    const std::int64_t* score_first = prefix_sums(step, [&](std::int32_t r) { return means.count[r]; });
    PageScores pages = page_scores(step, means.means, score_first, PageScores::Kind::kDot, PageScores::Heads::kMean);
    pages.queries = query;
    const float* scores = run_scores(step, pages);
    SelectUnits best{.num_rows = n,
                     .kind = SelectUnits::Kind::kSentences,
                     .lists = {.rows = means.sentence, .count = candidates},
                     .score_first = score_first,
                     .scores = scores,
                     .tokens = means.token,
                     .first = first,
                     .unit = step.ops.ints(first[n])};
    step.ops(best);
    return best.unit;
  }

  std::int32_t sinks_, recent_, factor_, window_, pool_, span_;
  std::vector<std::int32_t> closing_;
  RowMemory<std::int32_t> sentence_of_{*this}, candidates_{*this}, token_{*this}, sentence_{*this};  // sentence_of_ per sequence
  RowMemory<float> means_{*this}, sums_{*this};                                                      // sums_ per sequence
  PerRow<std::int32_t> split_{*this};
  PerRow<char> knows_sum_{*this};
  PerRow<Row> rows_{*this};
  std::vector<Queries> means_of_queries_;
};

KVLAB_REGISTER(Selector, Sentence, "sentence", "sentences by their mean key and the mean query of the current sentence",
               "SentenceKV: Zhu et al. 2025, arXiv:2504.00970, section 3");

}  // namespace

}  // namespace kvlab
