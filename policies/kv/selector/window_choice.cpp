#include "policies/kv/scorer/score_pool.h"
#include "policies/kv/selector/selection.h"
#include "policies/kv/step_arrays.h"

namespace kvlab {

namespace {

// The draft cache: a copy of tokens chosen as in SnapKV. The full cache remains.
class WindowChoice final : public Budgeted<Selector> {
 public:
  explicit WindowChoice(Params& p)
      : window_(p.optional<std::int32_t>("window_tokens", 32, 1, 4096, "last prompt queries that vote; their tokens are attended to")),
        own_tokens_(p.optional<std::int32_t>("budget_tokens", 256, 1, 1 << 24, "prompt tokens attended to per KV head, with the window's")),
        pool_(p, ScorePooling::kAvg, 5) {
    budget_ = {own_tokens_};
  }

  [[nodiscard]] Needs needs() const override { return {.window_queries = window_}; }
  void step_key(const SeqStep& seq, StepKey& key) const override { key.add(seq.prompt_tokens, StepKey::kForEver); }
  [[nodiscard]] Lengths affine_lengths(std::int32_t) const override { return Lengths::all(); }

  void update(LayerStep& step) override {
    const std::int32_t n = step.kv.num_rows;
    const std::int32_t* covered = progress_.advance(step);
    std::int32_t *older = step.ops.host_ints(n), *keep = step.ops.host_ints(n);
    for (std::int32_t r = 0; r < n; ++r) {
      const SeqStep& seq = seq_of(step, r);
      KeptUnits::Choice& row = chosen_.at(step, r);
      if (covered[r] == 0) row = {};  // attend to all
      older[r] = keep[r] = 0;
      const std::int32_t len = held_prompt_tokens(step, r), budget = tokens_of(budget_, step, r), window = std::min(window_, budget);
      const bool follows_a_choice = !step.ops.computes() && seq.decoding() && covered[r] == 0;  // the state after a prompt
      if ((!seq.completes_prompt() && !follows_a_choice) || len <= budget) continue;
      row.tail = len - window, row.count = budget - window;
      if (follows_a_choice) continue;
      older[r] = row.tail, keep[r] = row.count;
    }
    if (!all_whole(step, older)) choose(step, older, keep);
  }

  Selection select(LayerStep& step) override {
    const std::int32_t* tail = chosen_.tails(step);
    if (all_whole(step, tail)) return {};
    return expand(step, {.lists = chosen_.lists(step), .tail = tail});
  }

  [[nodiscard]] TierBytes resident(const ModelShape&, const KvRows& kv, const TierBytes& held) const override {
    return held.with_gpu(sum_rows(kv, [&](std::int32_t r) {
      const std::int32_t budget = budget_.of(kv.len[r]);
      return kv.len[r] > budget ? 2LL * budget * kv.head_dim * kv.kv_bytes : 0;
    }));
  }

 private:
  // keep[r] of the row's first older[r] tokens; 0: unchanged.
  void choose(LayerStep& step, const std::int32_t* older, const std::int32_t* keep) {
    LayerStep some = step;
    some.kv.len = per_row(step, [&](std::int32_t r) { return older[r] == 0 ? 0 : step.kv.len[r]; });
    some.kv.first = prefix_sums(step, [&](std::int32_t r) { return some.kv.len[r]; });
    std::vector<Queries> window = last_queries(step.in.window, window_, step.model);
    for (std::int32_t s = 0; s < step.kv.num_sequences(); ++s)
      if (some.kv.len[s * step.kv.kv_heads] == 0) window[static_cast<std::size_t>(s)].count = 0;
    float* scores = step.ops.floats(some.kv.total());
    sum_attention(some, window.data(), scores);
    pool_.smooth(
        some, [&](std::int32_t r) { return some.kv.len[r] - older[r]; }, scores);
    mask_ends(step, some.kv.first, per_row(step, [](std::int32_t) { return 0; }), older, scores);
    chosen_.keep(step, best_units(step, some.kv.first, scores, keep));
  }

  std::int32_t window_, own_tokens_;
  ScorePool pool_;
  RowProgress progress_{*this};
  KeptUnits chosen_{*this};  // tokens
};

KVLAB_REGISTER(Selector, WindowChoice, "window_choice", "tokens of the prompt chosen once by its last queries, and all decoded ones",
               "MagicDec: Chen et al. 2024, arXiv:2408.11049");

}  // namespace

}  // namespace kvlab
