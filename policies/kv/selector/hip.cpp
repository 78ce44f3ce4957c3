#include "policies/kv/selector/halving_search_op.h"
#include "policies/kv/selector/selection.h"

namespace kvlab {

namespace {

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
