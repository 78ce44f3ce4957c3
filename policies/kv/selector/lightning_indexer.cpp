#include "base/error.h"
#include "kernels/score/head_scores_op.h"
#include "policies/kv/selector/budget_share.h"
#include "policies/kv/selector/estimate_keys_op.h"

namespace kvlab {

namespace {

// Sum over heads of ReLU(q . k). The layer's own heads with weight 1 and keys of all KV heads replace the trained index (a key of 128
// channels per token, 64 weighted heads).
class LightningIndexer final : public Budgeted<QuerySelector<UnitTraffic>> {
 public:
  explicit LightningIndexer(Params& p)
      : Budgeted({p.optional<std::int32_t>("top_tokens", 2048, 1, 1 << 24, "tokens attended to per query, the same for all heads")}) {}

  [[nodiscard]] EqualHeads equal_heads() const override { return EqualHeads::kLeft; }

  void update(LayerStep& step) override {
    const EstimateKeys keys{.kv = step.kv, .rotated = true, .from = progress_.advance(step), .estimate = estimates(step)};
    if (!std::equal(keys.from, keys.from + step.kv.num_rows, step.kv.len)) step.ops(keys);
  }

  Selection select(LayerStep& step) override {
    const std::int32_t n = step.kv.num_rows, sequences = step.kv.num_sequences(), heads = step.kv.kv_heads;
    check_lengths(step.kv);
    const auto is_sparse = [&](std::int32_t s) { return step.kv.len[s * heads] > tokens_of(budget_, step, s * heads); };
    const std::int32_t* tail = per_row(step, [&](std::int32_t r) { return is_sparse(r / heads) ? step.kv.len[r] : 0; });
    if (all_whole(step, tail)) return {};
    HeadScores scores{.kv = step.kv, .queries = step.in.step.data(), .kind = HeadScores::Kind::kRectified, .estimate = estimates(step)};
    scores.first = prefix_sums(step.ops, sequences, [&](std::int32_t s) { return is_sparse(s) ? step.kv.len[s * heads] : 0; });
    scores.out = step.ops.floats(scores.first[sequences]);
    step.ops(scores);
    const std::int32_t* keep =
        per_row(step.ops, sequences, [&](std::int32_t s) { return is_sparse(s) ? tokens_of(budget_, step, s * heads) : 0; });
    const UnitLists chosen = best_units(step.ops, sequences, 1, scores.first, scores.out, keep);
    lists_.assign(static_cast<std::size_t>(n), nullptr);
    for (std::int32_t r = 0; r < n && step.ops.computes(); ++r) lists_[static_cast<std::size_t>(r)] = chosen.row(r / heads);
    const UnitLists lists{.rows = lists_.data(), .count = per_row(step, [&](std::int32_t r) { return keep[r / heads]; })};
    traffic_.track(step, lists);
    return expand(step, {.lists = lists, .tail = tail});
  }

  [[nodiscard]] TierBytes resident(const ModelShape& model, const KvRows& kv, const TierBytes& held) const override {
    return held.with_gpu(kv.total() * estimate_bytes(model.head_dim, 8));
  }

 private:
  static void check_lengths(const KvRows& kv) {
    for (std::int32_t r = 0; r < kv.num_rows; ++r)
      if (kv.len[r] != kv.len[r / kv.kv_heads * kv.kv_heads])
        throw InputError(
            "selector 'lightning_indexer' chooses the same tokens for all heads of a layer, but heads hold different numbers of tokens");
  }
  float* const* estimates(const LayerStep& step) {
    return estimates_.rows(step, [&](std::int32_t r) { return std::int64_t{step.kv.len[r]} * step.kv.head_dim; });
  }

  RowProgress progress_{*this};
  RowMemory<float> estimates_{*this};
  std::vector<const std::int32_t*> lists_;
};

KVLAB_REGISTER(Selector, LightningIndexer, "lightning_indexer",
               "the tokens of the largest rectified products with an 8-bit index, the same for all heads",
               "DeepSeek sparse attention: DeepSeek-V3.2-Exp, 2025");

}  // namespace

}  // namespace kvlab
