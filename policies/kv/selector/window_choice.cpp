#include <algorithm>

#include "policies/kv/scorer/score_pool.h"
#include "policies/kv/scorer/step_arrays.h"
#include "policies/kv/selector/budget_share.h"

namespace kvlab {

namespace {

// Tokens of the prompt chosen once, when it is complete, by the attention of its last queries, as SnapKV does; they, these last tokens and
// all decoded ones serve every step, and the cache itself stays whole. They are copied to a cache of their own. The draft's cache of
// MagicDec, Chen et al. 2024, arXiv:2408.11049.
class WindowChoice final : public Selector, public TakesShare {
 public:
  explicit WindowChoice(Params& p)
      : window_(p.optional<std::int32_t>("window_tokens", 32, 1, 4096, "last prompt queries that vote; their tokens are attended to")),
        budget_{p.optional<std::int32_t>("budget_tokens", 256, 1, 1 << 24, "prompt tokens attended to per KV head, with the window's")},
        pool_(p, ScorePooling::kAvg, 5) {}

  [[nodiscard]] Needs needs() const override {
    Needs needs;
    needs.window_queries = window_;
    return needs;
  }
  // The window is shorter where it would fill the budget.
  bool set_budget(std::int32_t tokens) override {
    budget_ = {tokens};
    return true;
  }
  void set_share(const Budget& share) override { budget_ = share; }
  void step_key(const SeqStep& seq, StepKey& key) const override { key.add(seq.prompt_tokens, StepKey::kForEver); }
  void forget(std::int32_t index) override { progress_.forget(index), rows_.forget(index), chosen_.forget(index); }

  void update(LayerStep& step) override {
    const std::int32_t n = step.kv.num_rows;
    const std::int32_t* covered = progress_.advance(step);
    std::int32_t *older = step.ops.host_ints(n), *keep = step.ops.host_ints(n);
    for (std::int32_t r = 0; r < n; ++r) {
      const SeqStep& seq = seq_of(step, r);
      Row& row = rows_.at(step, r);
      if (covered[r] == 0) row = {};  // a new sequence, or tokens were evicted: all are attended to
      older[r] = keep[r] = 0;
      const std::int32_t len = held_prompt_tokens(step, r), budget = tokens_of(budget_, step, r), window = std::min(window_, budget);
      const bool follows_a_choice = !step.ops.computes() && seq.decoding() && covered[r] == 0;  // the state that a prompt leaves
      if ((!seq.completes_prompt() && !follows_a_choice) || len <= budget) continue;
      row = {len - window, budget - window};
      if (follows_a_choice) continue;
      older[r] = row.tail, keep[r] = row.count;
    }
    if (!all_whole(n, older)) choose(step, older, keep);
  }

  Selection select(LayerStep& step) override {
    const std::int32_t n = step.kv.num_rows;
    ExpandUnits tokens;
    tokens.num_rows = n;
    tokens.tail = per_row(step.ops, n, [&](std::int32_t r) { return rows_.at(step, r).tail; });
    if (all_whole(n, tokens.tail)) return {};
    tokens.lists.count = per_row(step.ops, n, [&](std::int32_t r) { return rows_.at(step, r).count; });
    tokens.lists.rows = chosen_.rows(step, [](std::int32_t) { return 0; });
    tokens.len = step.kv.len;
    return expand(step.ops, tokens);
  }

  // The whole cache, and the copy with its decoded tokens.
  [[nodiscard]] TierBytes resident(const ModelShape&, const KvRows& kv, const TierBytes& held) const override {
    TierBytes bytes = held;
    for (std::int32_t r = 0; r < kv.num_rows; ++r)
      if (const std::int32_t budget = budget_.of(kv.len[r]); kv.len[r] > budget) bytes.gpu += 2LL * budget * kv.head_dim * kv.kv_bytes;
    return bytes;
  }

 private:
  // Tokens chosen before `tail`, from which on all are attended to.
  struct Row {
    std::int32_t tail = 0, count = 0;
  };

  // Chooses the best keep[r] of the first older[r] tokens of each row; rows of 0 are unchanged.
  void choose(LayerStep& step, const std::int32_t* older, const std::int32_t* keep) {
    const std::int32_t n = step.kv.num_rows;
    LayerStep some = step;
    some.kv.len = per_row(step.ops, n, [&](std::int32_t r) { return older[r] == 0 ? 0 : step.kv.len[r]; });
    some.kv.first = prefix_sums(step.ops, n, [&](std::int32_t r) { return some.kv.len[r]; });
    std::vector<Queries> window = last_queries(step.in.window, window_, step.model);
    for (std::int32_t s = 0; s < step.kv.num_sequences(); ++s)
      if (some.kv.len[s * step.kv.kv_heads] == 0) window[static_cast<std::size_t>(s)].count = 0;
    float* scores = step.ops.floats(some.kv.total());
    sum_attention(some, window.data(), scores);
    pool_.smooth(
        some, [&](std::int32_t r) { return some.kv.len[r] - older[r]; }, scores);
    mask_ends(step.ops, n, some.kv.first, per_row(step.ops, n, [](std::int32_t) { return 0; }), older, scores);
    KeepUnits kept;
    kept.num_rows = n;
    kept.lists = best_units(step.ops, n, 1, some.kv.first, scores, keep);
    kept.to = chosen_.rows(step, [&](std::int32_t r) { return keep[r]; });
    step.ops(kept);
  }

  std::int32_t window_;
  Budget budget_;
  ScorePool pool_;
  RowProgress progress_;
  PerRow<Row> rows_;
  RowMemory<std::int32_t> chosen_;
};

KVLAB_REGISTER(Selector, WindowChoice, "window_choice", "tokens of the prompt chosen once by its last queries, and all decoded ones",
               "MagicDec: Chen et al. 2024, arXiv:2408.11049");

}  // namespace

}  // namespace kvlab
