#include <algorithm>

#include "base/ceil_div.h"
#include "kernels/select/page_means/page_means.h"
#include "policies/kv/selector/budget_share.h"

namespace kvlab {

namespace {

// Chunks whose mean key has the largest product with a query head's query, and the chunk that the step is in. Each query head chooses; a
// KV head reads the union. MoBA's gate, Lu et al. 2025, arXiv:2502.13189, for models that were not trained with it.
class Moba final : public QuerySelector<UnitTraffic>, public TakesShare {
 public:
  explicit Moba(Params& p)
      : chunk_(p.optional<std::int32_t>("chunk_tokens", 2048, 1, 1 << 20, "tokens of a chunk")),
        top_(p.optional<std::int32_t>("top_chunks", 3, 1, 1 << 20, "chunks read by each query head, the step's own included")),
        dense_layers_(p.optional<std::int32_t>("dense_layers", 0, 0, 1024, "first layers that attend to everything")) {}

  [[nodiscard]] std::int32_t layer_kind(std::int32_t layer) const override { return layer < dense_layers_ ? 0 : 1; }
  // The budget of each query head, in whole chunks, at least two.
  bool set_budget(std::int32_t tokens) override {
    budget_ = {tokens};
    return true;
  }
  void set_share(const Budget& share) override { budget_ = share; }
  void forget(std::int32_t index) override {
    progress_.forget(index);
    means_.forget(index);
    QuerySelector::forget(index);
  }

  void update(LayerStep& step) override {
    if (step.layer < dense_layers_) return;
    PageMeans means;
    means.kv = step.kv;
    means.span_tokens = means.stride_tokens = chunk_;
    means.from = progress_.advance(step);
    means.means = rows(step);
    step.ops(means);
  }

  Selection select(LayerStep& step) override {
    if (step.layer < dense_layers_) return {};
    const std::int32_t n = step.kv.num_rows;
    const std::int32_t* tail = per_row(step.ops, n, [&](std::int32_t r) {
      const std::int32_t chunks = older_tokens(step, r) / chunk_;
      const bool fits = is_given(budget_) && step.kv.len[r] <= tokens_of(budget_, step, r);
      return fits || chunks < top_chunks(step, r) ? 0 : chunks * chunk_;
    });
    if (all_whole(n, tail)) return {};
    const std::int64_t* first = prefix_sums(step.ops, n, [&](std::int32_t r) { return tail[r] / chunk_; });
    const std::int32_t* keep = per_row(step.ops, n, [&](std::int32_t r) { return tail[r] == 0 ? 0 : top_chunks(step, r) - 1; });
    PageScores gate = page_scores(step, rows(step), first);
    gate.kind = PageScores::Kind::kDot;
    gate.heads = PageScores::Heads::kEach;
    gate.scores = step.ops.floats(first[n] * step.kv.group);
    step.ops(gate);
    ExpandUnits chunks;
    chunks.num_rows = n;
    chunks.lists = united(step, best_units(step.ops, n, step.kv.group, first, gate.scores, keep), first, keep);
    traffic_.track(step, chunks.lists);
    chunks.unit_tokens = chunk_;
    chunks.tail = tail;
    chunks.len = step.kv.len;
    return expand(step.ops, chunks);
  }

  [[nodiscard]] TierBytes resident(const ModelShape& model, const KvRows& kv, const TierBytes& held) const override {
    TierBytes bytes = held;
    for (std::int32_t r = 0; r < kv.num_rows; ++r) bytes.gpu += std::int64_t{ceil_div(kv.len[r], chunk_)} * model.head_dim * model.kv_bytes;
    return bytes;
  }

 private:
  [[nodiscard]] std::int32_t top_chunks(const LayerStep& step, std::int32_t r) const {
    return is_given(budget_) ? std::max(2, tokens_of(budget_, step, r) / chunk_) : top_;
  }
  float* const* rows(const LayerStep& step) {
    return means_.rows(step, [&](std::int32_t r) { return std::int64_t{ceil_div(step.kv.len[r], chunk_)} * step.kv.head_dim; });
  }

  std::int32_t chunk_, top_, dense_layers_;
  Budget budget_;
  RowProgress progress_;
  RowMemory<float> means_;
};

KVLAB_REGISTER(Selector, Moba, "moba", "chunks whose mean key matches a query head best, and the step's own",
               "MoBA: Lu et al. 2025, arXiv:2502.13189");

}  // namespace

}  // namespace kvlab
