#include <algorithm>
#include <vector>

#include "base/ceil_div.h"
#include "kernels/score/pool1d_op.h"
#include "kernels/score/reduce_heads_op.h"
#include "kernels/score/score_map_op.h"
#include "kernels/tensor_memory.h"
#include "policies/kv/scorer/scorer_wrapper.h"
#include "policies/kv/scorer/whole_chunks_op.h"

namespace kvlab {

namespace {

// Algorithm 1, by means summed over KV heads. With own sets per head and layers that share scores: WindowKV.
class Chunks final : public ScorerWrapper {
 public:
  explicit Chunks(Params& p)
      : ScorerWrapper(p, "window_attention", {.wrapper = "chunks", .refines = false, .adds_scores = true}),
        chunk_(p.optional<std::int32_t>("chunk_tokens", 20, 1, 1 << 20, "tokens of a chunk")),
        shared_heads_(p.choice("heads", {{"shared", true}, {"own", false}}, true, "one set for all KV heads, or one each")),
        top_half_(p.choice("chunk_score", {{"mean", false}, {"top_half", true}}, false, "mean over the chunk, or over its better half")),
        shared_layers_(p.optional<std::int32_t>("shared_layers", 1, 1, 1 << 10, "neighbouring layers that use the first one's scores")),
        layer_groups_(p.optional<std::int32_t>("layer_groups", 0, 0, 1 << 10,
                                               "groups of neighbouring layers that use the first one's scores, as many in a model of any "
                                               "depth; 0: as shared_layers says")),
        above_max_(p.choice("protect", {{"infinite", false}, {"above_max", true}}, false,
                            "protected tokens stay outside the chunks, or enter them with the largest score plus 1")),
        chunks_frac_(
            p.optional<double>("chunks_frac", 0.0, 0.0, 1.0, "share of the chunks kept, at least one; 0: as many as fit the budget")),
        of_chunks_(
            p.flag("budget_of_chunks", false,
                   "as in kvpress: a budget that is a share of the prompt is meant as chunks_frac, and a prompt shorter than a chunk "
                   "is cut by the other scorer alone")) {
    peer_ties_ = p.flag("peer_ties", false, "equal chunks fall as in kvpress on a CPU");
    if (peer_ties_ && !of_chunks_) p.fail_at("peer_ties", "'peer_ties' goes with 'budget_of_chunks: true'");
    if (layer_groups_ > 0 && shared_layers_ > 1) p.fail_at("layer_groups", "give one of 'shared_layers' and 'layer_groups'");
  }

  [[nodiscard]] std::int32_t layer_kind(std::int32_t layer) const override {
    return shared_layers_ > 1 || layer_groups_ > 0 ? layer : ScorerWrapper::layer_kind(layer);
  }
  [[nodiscard]] bool splits_heads() const override { return !shared_heads_; }
  void set_budget(const Budget& budget) override {
    ScorerWrapper::set_budget(budget);
    if (of_chunks_ && budget.tokens == 0) chunks_frac_ = budget.frac;
  }

  [[nodiscard]] Protected protects() const override { return above_max_ ? Protected{} : inner().protects(); }

  void score(LayerStep& step, float* scores) override {
    const KvRows& kv = step.kv;
    const std::int32_t shared = layer_groups_ > 0 ? ceil_div(step.model.num_layers, layer_groups_) : shared_layers_;
    if (step.layer % shared != 0 && same_rows(kv)) {
      copy(step, saved_.data(), scores);
      return;
    }
    inner().score(step, scores);
    if (above_max_) protect_ends(step, inner().protects(), scores, true);
    const Range range = chunked(step);
    KvRows reduced = kv;  // rows with chunks
    reduced.len = per_row(step, [&](std::int32_t r) { return cuts_alone(kv.len[r]) ? 0 : kv.len[r]; });
    if (shared_heads_) step.ops(ReduceHeads{reduced, ReduceHeads::Kind::kSum, scores});
    step.ops(Pool1d{kv.num_rows, kv.first, range.begin, range.len, scores, chunk_,
                    top_half_ ? Pool1d::Kind::kMeanOfTopHalf : Pool1d::Kind::kMean, peer_ties_});
    if (shared > 1 && step.layer % shared == 0) {
      saved_len_.assign(kv.len, kv.len + kv.num_rows);
      saved_.settle_in(step.memory());
      saved_.resize(step.ops.computes() ? kv.total() : 0);
      copy(step, scores, saved_.data());
    }
  }

  [[nodiscard]] bool ranks_after_counts() const override { return true; }
  void refine(LayerStep& step, std::int32_t* keep, float* scores) override {
    const KvRows& kv = step.kv;
    const Range range = chunked(step);
    std::int32_t* num_chunks = chunks_frac_ > 0 ? step.ops.host_ints(kv.num_rows) : nullptr;
    for (std::int32_t r = 0; r < kv.num_rows && num_chunks != nullptr; ++r) {
      if (cuts_alone(kv.len[r])) continue;
      const std::int32_t all_chunks = ceil_div(range.len[r], chunk_);
      num_chunks[r] = std::max(1, static_cast<std::int32_t>(all_chunks * chunks_frac_));
      keep[r] = kv.len[r] - range.len[r] + std::min(range.len[r], num_chunks[r] * chunk_);
    }
    const bool mirrors = peer_ties_ && num_chunks != nullptr;
    step.ops(WholeChunks{kv.num_rows, kv.first, range.begin, range.len, chunk_, scores, num_chunks, keep, scores, mirrors});
    step.ops.settle("whole_chunks", step.layer, {keep, static_cast<std::size_t>(kv.num_rows)});
  }

 private:
  struct Range {
    std::int32_t *begin, *len;  // [num_rows]
  };

  // Assumes that protected tokens are still held, at both ends.
  [[nodiscard]] Range chunked(LayerStep& step) const {
    const Range range{step.ops.host_ints(step.kv.num_rows), step.ops.host_ints(step.kv.num_rows)};
    const Protected stay = protects();
    for (std::int32_t r = 0; r < step.kv.num_rows; ++r) {
      range.begin[r] = std::min(stay.sinks, step.kv.len[r]);
      range.len[r] = cuts_alone(step.kv.len[r]) ? 0 : std::max(0, step.kv.len[r] - range.begin[r] - stay.recent);
    }
    return range;
  }
  // True: no chunks; the inner scores cut the row.
  [[nodiscard]] bool cuts_alone(std::int32_t n) const { return of_chunks_ && chunks_frac_ > 0 && n < chunk_; }
  [[nodiscard]] bool same_rows(const KvRows& kv) const {
    return saved_len_.size() == static_cast<std::size_t>(kv.num_rows) && std::equal(saved_len_.begin(), saved_len_.end(), kv.len);
  }
  static void copy(LayerStep& step, const float* from, float* to) {
    step.ops(ScoreMap{step.kv.num_rows, step.kv.first, ScoreMap::Kind::kPlus, from, 1.0F, 0.0F, false, nullptr, nullptr, to});
  }

  std::int32_t chunk_;
  bool shared_heads_, top_half_;
  std::int32_t shared_layers_, layer_groups_;
  bool above_max_;
  double chunks_frac_;
  bool of_chunks_;
  TensorArray<float> saved_;  // of the group's first layer
  std::vector<std::int32_t> saved_len_;
};

KVLAB_REGISTER(Scorer, Chunks, "chunks", "whole chunks of neighbouring tokens by another score",
               "ChunkKV: Liu et al. 2025, arXiv:2502.00299, algorithm 1");

class EntropyChunks final : public ScorerWrapper {
 public:
  explicit EntropyChunks(Params& p)
      : ScorerWrapper(p, "window_attention", {.wrapper = "entropy_chunks", .refines = false, .adds_scores = true}),
        chunk_(p.optional<std::int32_t>("chunk_tokens", 10, 2, 1 << 20, "tokens of a chunk")),
        peaked_(p.optional<std::int32_t>("peaked_tokens", 4, 1, 1 << 20, "tokens kept of a chunk whose scores are concentrated")) {
    if (peaked_ >= chunk_) p.fail_at("peaked_tokens", "'peaked_tokens' must be smaller than 'chunk_tokens'");
  }
  // Protected in chunks, with the largest score + 1.
  [[nodiscard]] Protected protects() const override { return {}; }
  [[nodiscard]] EqualHeads equal_heads() const override { return EqualHeads::kFound; }

  void score(LayerStep& step, float* scores) override {
    inner().score(step, scores);
    protect_ends(step, inner().protects(), scores, true);
  }
  [[nodiscard]] bool ranks_after_counts() const override { return true; }
  void refine(LayerStep& step, std::int32_t* keep, float* scores) override {
    step.ops(GatedChunks{step.kv, chunk_, peaked_, keep, scores});
  }

 private:
  std::int32_t chunk_, peaked_;
};

KVLAB_REGISTER(Scorer, EntropyChunks, "entropy_chunks",
               "chunks of neighbouring tokens, of those with concentrated scores a few tokens alone",
               "kvpress's EntropyGatedChunkKVPress, version 0.5.5, over ChunkKV: Liu et al. 2025, arXiv:2502.00299");

}  // namespace

}  // namespace kvlab
