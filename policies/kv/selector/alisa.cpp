#include "kernels/score/recent_attention_op.h"
#include "kernels/score/token_scores_op.h"
#include "policies/kv/selector/tiers.h"

namespace kvlab {

namespace {

// Half of the budget each for newest and older tokens. Unread tokens keep older probabilities.
class Alisa final : public Budgeted<TierSelector> {
 public:
  explicit Alisa(Params& p)
      : budget_frac_(p.optional<double>("budget_frac", 0.2, 0.0001, 1, "share of the row attended to")),
        rows_(p.optional<std::int32_t>("row_tokens", 8, 1, 128, "last rows of attention that are summed up")) {}

  [[nodiscard]] std::int32_t num_words() const override { return rows_ + 1; }

  [[nodiscard]] Lower lower(std::int32_t) const override { return Lower::kKeysAndValues; }

  void update(LayerStep& step) override {
    traffic_.begin(step, [&](std::int32_t r) { return held_from(step, r); });
    const auto decodes = [](const SeqStep& seq) { return seq.decoding(); };
    if (!std::all_of(step.seqs.begin(), step.seqs.end(), decodes)) push(step, {}, false);  // in decode, after select()
  }

  Selection select(LayerStep& step) override {
    const std::int32_t* len = step.kv.len;
    const std::int32_t* tail = per_row(
        step, [&](std::int32_t r) { return std::min(older_tokens(step, r), len[r] - recent(len[r], tokens_of(budget_, step, r))); });
    const std::int32_t* keep = per_row(
        step, [&](std::int32_t r) { return std::clamp(attended(len[r], tokens_of(budget_, step, r)) - (len[r] - tail[r]), 0, tail[r]); });
    const std::int64_t* older = prefix_sums(step, [&](std::int32_t r) { return tail[r]; });
    Selection selection;
    if (traffic_.reads_all(step, keeps_all(step, older, keep))) {
      step.fetch(selection);
      push(step, {}, false);
      return selection;
    }
    float* scores = step.ops.floats(step.kv.total());
    step.ops(TokenScores{step.kv, TokenScores::Kind::kWordSum, first_word(), 0, nullptr, nullptr, scores, rows_});  // section IV-A
    const std::int32_t* head = per_row(step, [](std::int32_t) { return 0; });
    mask_ends(step, step.kv.first, head, tail, scores);
    const UnitLists lists = best_units(step, step.kv.first, scores, keep);
    selection = expand(step, {.lists = lists, .tail = tail});
    traffic_.track(step, lists, lists_of(selection), 2LL * step.kv.head_dim * step.kv.kv_bytes);
    step.fetch(selection);
    push(step, selection, true);
    return selection;
  }

  [[nodiscard]] TierBytes resident(const ModelShape&, const KvRows& kv, const TierBytes& held) const override {
    const auto on_gpu = sum_rows(kv, [&](std::int32_t r) { return std::min(kv.len[r], attended(kv.len[r], budget_.of(kv.len[r]))); });
    return keep_on_gpu(held, on_gpu, kv.total());
  }

 private:
  [[nodiscard]] std::int32_t attended(std::int32_t len, std::int32_t budget) const {
    return budget > 0 ? budget : std::max(1, static_cast<std::int32_t>(budget_frac_ * len));
  }
  [[nodiscard]] std::int32_t recent(std::int32_t len, std::int32_t budget) const {
    return std::min(len, std::max(1, attended(len, budget) / 2));
  }

  std::int32_t held_from(const LayerStep& step, std::int32_t r) override {
    const std::int32_t len = step.kv.len[r], budget = tokens_of(budget_, step, r);
    return attended(len, budget) >= len ? 0 : len - recent(len, budget);
  }

  void push(LayerStep& step, const Selection& selection, bool lists) {
    step.ops(RecentAttention{.kv = step.kv,
                             .queries = step.in.step.data(),
                             .steps = rows_,
                             .lists_tokens = lists,
                             .index_first = selection.index_first,
                             .index = selection.index,
                             .first_word = first_word()});
  }

  double budget_frac_;
  std::int32_t rows_;
};

KVLAB_REGISTER(Selector, Alisa, "alisa",
               "the newest tokens and those that the last rows of attention favoured; the others wait on the host",
               "ALISA: Zhao et al. 2024, arXiv:2403.17312, section IV");

}  // namespace

}  // namespace kvlab
