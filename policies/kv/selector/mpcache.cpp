#include <algorithm>
#include <cmath>

#include "base/ceil_div.h"
#include "policies/kv/selector/budget_share.h"
#include "policies/kv/selector/key_summaries.h"
#include "policies/kv/selector/selection.h"

namespace kvlab {

namespace {

// MPCache, Zeng et al. 2025, arXiv:2501.06807. Neighboring layers share a choice.
class MpCache final : public Budgeted<QuerySelector<UnitTraffic>> {
 public:
  explicit MpCache(Params& p)
      : large_(p.optional<std::int32_t>("large_tokens", 32, 2, 1 << 16, "tokens of a large cluster")),
        small_(p.optional<std::int32_t>("small_tokens", 16, 1, 1 << 16, "tokens of a small cluster")),
        large_share_(p.optional<double>("large_frac", 0.5, 0.001, 1, "large clusters that survive")),
        share_(p.optional<double>("keep_frac", 0.2, 0.001, 1, "small clusters attended to, of all")),
        max_share_(p.optional<double>("max_share", 0.6, 0, 1, "weight of a channel's maximum; its minimum has the rest")),
        dense_layers_(p.optional<std::int32_t>("dense_layers", 2, 0, 1024, "first layers that attend to everything")),
        shared_layers_(p.optional<std::int32_t>("shared_layers", 2, 1, 64, "neighbouring layers that use one choice")) {
    if (large_ % small_ != 0) p.fail_at("small_tokens", "'large_tokens' must be a multiple of 'small_tokens'");
  }

  [[nodiscard]] std::int32_t layer_kind(std::int32_t layer) const override {
    return shared_layers_ > 1 ? layer : layer < dense_layers_ ? 0 : 1;
  }
  // Without a budget, choices change only when a small cluster begins or ends.
  [[nodiscard]] Lengths affine_lengths(std::int32_t len) const override {
    const std::int32_t in_cluster = (len - 1) % small_;
    if (is_given(budget_) || in_cluster == 0 || in_cluster == small_ - 1) return Lengths::only(len);
    return {len - in_cluster + 1, len - in_cluster + small_ - 1};
  }

  void update(LayerStep& step) override {
    if (step.layer < dense_layers_ || leader(step.layer) != step.layer) return;
    large_bounds_.update(step);
    small_bounds_.update(step);
  }

  Selection select(LayerStep& step) override {
    if (step.layer < dense_layers_) return {};
    const std::int32_t n = step.kv.num_rows;
    LayerStep first_layer{step.ops, step.model, leader(step.layer), step.seqs, step.kv, step.in, step.seed, step.tensors};
    if (step.layer == first_layer.layer) choose(step);
    ExpandUnits tokens;
    tokens.tail = per_row(step.ops, n, [&](std::int32_t r) { return choice(first_layer, r).tail; });
    if (all_whole(n, tokens.tail)) return {};
    tokens.num_rows = n;
    tokens.lists.count = per_row(step.ops, n, [&](std::int32_t r) { return choice(first_layer, r).count; });
    tokens.lists.rows = chosen_.rows(first_layer, [](std::int32_t) { return 0; });
    traffic_.track(step, tokens.lists);
    tokens.unit_tokens = small_;
    tokens.head = per_row(step.ops, n, [&](std::int32_t r) { return tokens.tail[r] == 0 ? 0 : large_; });
    tokens.len = step.kv.len;
    return expand(step.ops, tokens);
  }

  [[nodiscard]] TierBytes resident(const ModelShape& model, const KvRows& kv, const TierBytes& held) const override {
    TierBytes bytes = held;  // one layer in `shared_layers` keeps bounds
    bytes.gpu += (large_bounds_.bytes(model, kv) + small_bounds_.bytes(model, kv)) / shared_layers_;
    return bytes;
  }

 private:
  // tail 0: the whole row is read.
  struct Choice {
    RowMark mark;
    std::int32_t tail = 0, count = 0;
  };

  [[nodiscard]] std::int32_t leader(std::int32_t layer) const { return layer - (layer - dense_layers_) % shared_layers_; }

  // After an eviction, a row unlike the choosing layer's is read whole.
  Choice choice(const LayerStep& step, std::int32_t row) {
    const Choice& c = choices_.at(step, row);
    return c.mark.len == step.kv.len[row] && c.mark.end == seq_of(step, row).end() ? c : Choice{};
  }

  [[nodiscard]] std::int32_t kept(std::int32_t len, std::int32_t tail, std::int32_t budget) const {
    const std::int32_t clusters = (tail - large_) / small_;
    if (budget > 0) return len <= budget ? clusters : std::clamp((budget - large_ - (len - tail)) / small_, 0, clusters);
    return std::min(clusters, static_cast<std::int32_t>(std::ceil(share_ * clusters)));
  }

  void choose(LayerStep& step) {
    const std::int32_t n = step.kv.num_rows, ratio = large_ / small_;
    for (std::int32_t r = 0; r < n; ++r) {
      const std::int32_t tail = older_tokens(step, r) / large_ * large_;
      Choice& c = choices_.at(step, r) = {{step.kv.len[r], seq_of(step, r).end()}, 0, 0};
      if (tail <= large_) continue;
      const std::int32_t count = kept(step.kv.len[r], tail, tokens_of(budget_, step, r));
      if (count >= (tail - large_) / small_) continue;
      c.tail = tail;
      c.count = count;
    }
    const std::int32_t* end = per_row(step.ops, n, [&](std::int32_t r) { return choices_.at(step, r).tail / large_; });
    if (all_whole(n, end)) return;
    const std::int64_t* first = prefix_sums(step.ops, n, [&](std::int32_t r) { return end[r]; });
    float* scores = judge(step, large_bounds_.rows(step), first, nullptr);
    mask_ends(step.ops, n, first, per_row(step.ops, n, [&](std::int32_t r) { return end[r] == 0 ? 0 : 1; }), end, scores);
    const std::int32_t* survivors = per_row(step.ops, n, [&](std::int32_t r) {
      const std::int32_t wanted = ceil_div(choices_.at(step, r).count, ratio);
      return end[r] == 0 ? 0 : std::max(wanted, static_cast<std::int32_t>(std::ceil(large_share_ * (end[r] - 1))));
    });
    choose_small(step, best_units(step.ops, n, 1, first, scores, survivors));
  }

  void choose_small(LayerStep& step, const UnitLists& large) {
    const std::int32_t n = step.kv.num_rows;
    ExpandUnits candidates;
    candidates.num_rows = n;
    candidates.lists = large;
    candidates.unit_tokens = large_ / small_;
    candidates.tail = candidates.len = per_row(step.ops, n, [](std::int32_t) { return 0; });
    const Selection small = expand(step.ops, candidates);
    const float* scores = judge(step, small_bounds_.rows(step), small.index_first, &small);
    const std::int32_t* keep = per_row(step.ops, n, [&](std::int32_t r) { return choices_.at(step, r).count; });
    const UnitLists picks = best_units(step.ops, n, 1, small.index_first, scores, keep);
    CopyUnits compose;
    compose.num_rows = n;
    compose.lists.first = small.index_first;
    compose.lists.unit = small.index;
    compose.kind = CopyUnits::Kind::kPick;
    compose.first = picks.first;
    compose.pick = picks.unit;
    compose.out = step.ops.ints(picks.first[n]);
    step.ops(compose);
    CopyUnits keep_units;
    keep_units.num_rows = n;
    keep_units.lists.first = picks.first;
    keep_units.lists.unit = compose.out;
    keep_units.to = chosen_.rows(step, [&](std::int32_t r) { return keep[r]; });
    step.ops(keep_units);
  }

  float* judge(LayerStep& step, const float* const* summaries, const std::int64_t* first, const Selection* listed) {
    PageScores scores = page_scores(step, summaries, first);
    scores.kind = PageScores::Kind::kBlend;
    scores.heads = PageScores::Heads::kMean;
    scores.max_share = static_cast<float>(max_share_);
    scores.lists_units = listed != nullptr;
    scores.unit = listed != nullptr ? listed->index : nullptr;
    scores.scores = step.ops.floats(first[step.kv.num_rows]);
    step.ops(scores);
    return scores.scores;
  }

  std::int32_t large_, small_;
  double large_share_, share_, max_share_;
  std::int32_t dense_layers_, shared_layers_;
  KeySummaries large_bounds_{*this, KeySummaries::Kind::kBounds, large_}, small_bounds_{*this, KeySummaries::Kind::kBounds, small_};
  PerRow<Choice> choices_{*this};
  RowMemory<std::int32_t> chosen_{*this};
};

KVLAB_REGISTER(Selector, MpCache, "mpcache", "clusters of neighbouring tokens sifted in two sizes by a blend of their key bounds",
               "MPCache: Zeng et al. 2025, arXiv:2501.06807");

}  // namespace

}  // namespace kvlab
