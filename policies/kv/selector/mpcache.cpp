#include <cmath>

#include "base/ceil_div.h"
#include "policies/kv/selector/halving_search_op.h"
#include "policies/kv/selector/paged_selector.h"
#include "policies/kv/selector/selection.h"

namespace kvlab {

namespace {

// Neighboring layers share a choice.
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
    LayerStep first_layer{step.ops, step.model, leader(step.layer), step.seqs, step.kv, step.in, step.seed, step.tensors};
    if (step.layer == first_layer.layer) choose(step);
    const std::int32_t* tail = per_row(step, [&](std::int32_t r) { return choice(first_layer, r).tail; });
    if (all_whole(step, tail)) return {};
    const UnitLists lists{.rows = choices_.units(first_layer),
                          .count = per_row(step, [&](std::int32_t r) { return choice(first_layer, r).count; })};
    traffic_.track(step, lists);
    const std::int32_t* head = per_row(step, [&](std::int32_t r) { return tail[r] == 0 ? 0 : large_; });
    return expand(step, {.lists = lists, .unit_tokens = small_, .head = head, .tail = tail});
  }

  [[nodiscard]] TierBytes resident(const ModelShape& model, const KvRows& kv, const TierBytes& held) const override {
    // One layer in `shared_layers` keeps bounds.
    return held.with_gpu((large_bounds_.bytes(model, kv) + small_bounds_.bytes(model, kv)) / shared_layers_);
  }

 private:
  [[nodiscard]] std::int32_t leader(std::int32_t layer) const { return layer - (layer - dense_layers_) % shared_layers_; }

  // After an eviction, a row unlike the choosing layer's is read whole.
  KeptUnits::Choice choice(const LayerStep& step, std::int32_t row) {
    const KeptUnits::Choice& c = choices_.at(step, row);
    return c.mark.len == step.kv.len[row] && c.mark.end == seq_of(step, row).end() ? c : KeptUnits::Choice{};
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
      KeptUnits::Choice& c = choices_.at(step, r) = {{step.kv.len[r], seq_of(step, r).end()}, 0, 0};
      if (tail <= large_) continue;
      const std::int32_t count = kept(step.kv.len[r], tail, tokens_of(budget_, step, r));
      if (count >= (tail - large_) / small_) continue;
      c.tail = tail;
      c.count = count;
    }
    const std::int32_t* end = per_row(step, [&](std::int32_t r) { return choices_.at(step, r).tail / large_; });
    if (all_whole(step, end)) return;
    const std::int64_t* first = prefix_sums(step, [&](std::int32_t r) { return end[r]; });
    float* scores = judge(step, large_bounds_.rows(step), first, nullptr);
    mask_ends(step, first, per_row(step, [&](std::int32_t r) { return end[r] == 0 ? 0 : 1; }), end, scores);
    const std::int32_t* survivors = per_row(step, [&](std::int32_t r) {
      const std::int32_t wanted = ceil_div(choices_.at(step, r).count, ratio);
      return end[r] == 0 ? 0 : std::max(wanted, static_cast<std::int32_t>(std::ceil(large_share_ * (end[r] - 1))));
    });
    choose_small(step, best_units(step, first, scores, survivors));
  }

  void choose_small(LayerStep& step, const UnitLists& large) {
    const Selection small = expand(step, {.lists = large, .unit_tokens = large_ / small_, .tail = step.kv.len});
    const float* scores = judge(step, small_bounds_.rows(step), small.index_first, &small);
    const UnitLists picks = best_units(step, small.index_first, scores, choices_.counts(step));
    choices_.keep(step, pick_units(step, {.first = small.index_first, .unit = small.index}, picks));
  }

  float* judge(LayerStep& step, const float* const* summaries, const std::int64_t* first, const Selection* listed) {
    PageScores scores = page_scores(step, summaries, first, PageScores::Kind::kBlend, PageScores::Heads::kMean);
    scores.max_share = static_cast<float>(max_share_);
    scores.lists_units = listed != nullptr;
    scores.unit = listed != nullptr ? listed->index : nullptr;
    return run_scores(step, scores);
  }

  std::int32_t large_, small_;
  double large_share_, share_, max_share_;
  std::int32_t dense_layers_, shared_layers_;
  KeySummaries large_bounds_{*this, KeySummaries::Kind::kBounds, large_}, small_bounds_{*this, KeySummaries::Kind::kBounds, small_};
  KeptUnits choices_{*this};  // small clusters
};

KVLAB_REGISTER(Selector, MpCache, "mpcache", "clusters of neighbouring tokens sifted in two sizes by a blend of their key bounds",
               "MPCache: Zeng et al. 2025, arXiv:2501.06807");

// Sinks and newest tokens are always read.
class Hip final : public Budgeted<QuerySelector<UnitTraffic>> {
 public:
  explicit Hip(Params& p)
      : top_(p.optional<std::int32_t>("top_tokens", 512, 1, 1 << 24, "tokens found by the search")),
        block_(p.optional<std::int32_t>("block_tokens", 2, 1, 1 << 12, "tokens of a key block")),
        sinks_(p.optional<std::int32_t>("sink_tokens", 16, 0, 1 << 20, "first tokens attended to")),
        recent_(p.optional<std::int32_t>("recent_tokens", 256, 1, 1 << 20, "newest tokens attended to, rounded up to blocks")),
        dense_layers_(p.optional<std::int32_t>("dense_layers", 3, 0, 1024, "first layers that attend to everything")) {}

  [[nodiscard]] std::int32_t layer_kind(std::int32_t layer) const override { return layer < dense_layers_ ? 0 : 1; }

  Selection select(LayerStep& step) override {
    if (step.layer < dense_layers_) return {};
    const std::int32_t n = step.kv.num_rows;
    const std::int32_t* blocks = per_row(step, [&](std::int32_t r) {
      const AttendedParts size = sizes(step, r);
      const std::int32_t between = std::min(step.kv.len[r] - size.recent, older_tokens(step, r)) - size.sinks;
      return between / block_ <= size.top / block_ || between <= size.top ? 0 : between / block_;
    });
    if (all_whole(step, blocks)) return {};
    HalvingSearch search{.kv = step.kv,
                         .queries = step.in.step.data(),
                         .block_tokens = block_,
                         .base = per_row(step, [&](std::int32_t r) { return blocks[r] == 0 ? 0 : sizes(step, r).sinks; }),
                         .blocks = blocks,
                         .keep = per_row(step, [&](std::int32_t r) { return blocks[r] == 0 ? 0 : sizes(step, r).top / block_; })};
    search.first = prefix_sums(step, [&](std::int32_t r) { return search.keep[r]; });
    search.block = step.ops.ints(search.first[n]);
    step.ops(search);
    const UnitLists lists{.first = search.first, .unit = search.block};
    traffic_.track(step, lists);
    const std::int32_t* tail = per_row(step, [&](std::int32_t r) { return search.base[r] + blocks[r] * block_; });
    return expand(step, {.lists = lists, .unit_tokens = block_, .base = search.base, .head = search.base, .tail = tail});
  }

 private:
  [[nodiscard]] AttendedParts sizes(std::int32_t tokens) const { return parts_of({sinks_, recent_, top_}, budget_, tokens); }
  [[nodiscard]] AttendedParts sizes(const LayerStep& step, std::int32_t r) const { return sizes(tokens_of(budget_, step, r)); }

  std::int32_t top_, block_, sinks_, recent_, dense_layers_;
};

KVLAB_REGISTER(Selector, Hip, "hip", "key blocks found by halving groups, each judged by its middle token",
               "HiP attention: Lee et al. 2024, arXiv:2406.09827");

}  // namespace

}  // namespace kvlab
