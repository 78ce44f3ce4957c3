#include <algorithm>

#include "kernels/allocate/count_scores_op.h"
#include "kernels/select/copy_queries_op.h"
#include "kernels/select/mean_query_op.h"
#include "policies/kv/selector/paged_selector.h"

namespace kvlab {

namespace {

// From the paper's abstract.
class ActQkv final : public PagedSelector {
 public:
  explicit ActQkv(Params& p) {
    const auto chunk = p.optional<std::int32_t>("chunk_tokens", 32, 1, 1 << 16, "tokens of a chunk, judged by their mean key");
    window_ = p.optional<std::int32_t>("window_tokens", 64, 1, 4096, "last queries that make the probe");
    sinks_ = p.optional<std::int32_t>("sink_tokens", 128, 0, 1 << 20, "first tokens attended to, rounded down to chunks");
    recent_ = p.optional<std::int32_t>("recent_tokens", 512, 1, 1 << 20, "newest tokens attended to, rounded up to chunks");
    const auto budget =
        p.optional<std::int32_t>("budget_tokens", 2048, 1, 1 << 24, "tokens attended to per KV head, on average over layers");
    set_sizes({.unit_tokens = chunk, .budget = {budget}, .summary = KeySummaries::Kind::kMeans});
  }

  [[nodiscard]] Needs needs() const override { return {.step_queries = true, .window_queries = window_}; }
  void step_key(const SeqStep& seq, StepKey& key) const override {
    key.add(std::min(window_, seq.end()), seq.end() < window_ ? 1 : StepKey::kForEver);
  }
  void update(LayerStep& step) override {
    PagedSelector::update(step);
    remember_queries(step);
  }
  [[nodiscard]] TierBytes resident(const ModelShape& model, const KvRows& kv, const TierBytes& held) const override {
    return PagedSelector::resident(model, kv, held).with_gpu(2LL * kv.num_sequences() * window_ * model.q_heads * model.head_dim);
  }

 protected:
  // Sinks and newest tokens leave at least 1/4 of a budget to chunks; `keep` is the average over layers.
  [[nodiscard]] Plan plan(const LayerStep& step, std::int32_t r) const override {
    const std::int32_t budget = tokens(step, r), sinks = (is_set_ ? std::min(sinks_, budget / 4) : sinks_) / unit_tokens();
    const std::int32_t recent = is_set_ ? std::min(recent_, std::max(1, budget / 2)) : recent_, len = step.kv.len[r];
    const std::int32_t chunks = std::min(len - recent, older_tokens(step, r)) / unit_tokens();
    const std::int32_t ranked = std::max(1, (budget - sinks * unit_tokens() - (len - chunks * unit_tokens())) / unit_tokens());
    return len <= budget || chunks <= sinks + ranked ? Plan{} : Plan{chunks, ranked, sinks};
  }
  UnitLists choose(LayerStep& step, const RowPlans& rows) override {
    float* scores = judge(step, rows.first);
    const std::int32_t* keep = share(step, rows, scores);
    mask_ends(step, rows.first, rows.head, rows.end, scores);
    return best_units(step, rows.first, scores, keep);
  }

 private:
  void remember_queries(LayerStep& step) {
    const std::int32_t sequences = step.kv.num_sequences(), width = step.model.q_heads * step.model.head_dim;
    std::vector<Queries> fresh;
    for (std::int32_t s = 0; s < sequences; ++s) {
      const auto at = static_cast<std::size_t>(s);
      const SeqStep& seq = step.seqs[at];
      fresh.push_back(seq.decoding() ? step.in.step[at] : seq.completes_prompt() ? step.in.window[at] : Queries{});
      held_.of_sequence(step, s) = seq.decoding() || seq.completes_prompt() ? std::min(window_, seq.end()) : 0;
    }
    step.ops(CopyQueries{.num_sequences = sequences,
                         .num_heads = step.model.q_heads,
                         .head_dim = step.model.head_dim,
                         .queries = fresh.data(),
                         .out = ring_.sequences(step, [&](std::int32_t) { return static_cast<std::int64_t>(window_) * width; }),
                         .kind = CopyQueries::Kind::kHalfRing,
                         .ring_tokens = window_});
  }

  float* judge(LayerStep& step, const std::int64_t* first) {
    const std::int32_t sequences = step.kv.num_sequences(), width = step.model.q_heads * step.model.head_dim;
    float* const* const ring = ring_.sequences(step, [](std::int32_t) { return 0; });
    float* const probe = step.ops.floats(static_cast<std::int64_t>(sequences) * width);
    std::vector<Queries> held;
    for (std::int32_t s = 0; s < sequences; ++s) held.push_back({ring[s], held_.of_sequence(step, s), 0});
    const std::vector<Queries> probes = queries_over(step, probe);
    step.ops(MeanQuery{sequences, width, held.data(), probe, MeanQuery::Kind::kProbe});
    PageScores scores = page_scores(step, summaries_.rows(step), first, PageScores::Kind::kDot, PageScores::Heads::kMean);
    scores.queries = probes.data();
    scores.softmax = true;
    return run_scores(step, scores);
  }

  const std::int32_t* share(LayerStep& step, const RowPlans& rows, const float* scores) {
    const std::int32_t n = step.kv.num_rows;
    CountScores share{.num_rows = n,
                      .first = rows.first,
                      .scores = scores,
                      .kind = CountScores::Kind::kEntropyShare,
                      .rows_per_pool = step.kv.kv_heads,
                      .given = rows.keep,
                      .layer = step.layer,
                      .num_layers = step.model.num_layers};
    const LayerStep all_layers{step.ops, step.model, 0, step.seqs, step.kv, step.in, step.seed, step.tensors};
    share.entropies = entropies_.sequences(all_layers, [&](std::int32_t) { return step.model.num_layers; });
    share.count = per_row(step, [&](std::int32_t r) { return std::min(2 * rows.keep[r], rows.end[r]); });
    step.ops(share);
    settle_rows(step, "selected_chunks", share.count);
    for (std::int32_t r = 0; r < n; ++r) share.count[r] = std::min(share.count[r], std::max(0, rows.end[r] - rows.head[r]));
    return share.count;
  }

  std::int32_t window_ = 0, sinks_ = 0, recent_ = 0;
  RowMemory<float> ring_{*this}, entropies_{*this};  // per sequence; entropies_ for all layers
  PerRow<std::int32_t> held_{*this};
};

KVLAB_REGISTER(Selector, ActQkv, "act_qkv",
               "chunks ranked by a probe query of the last tokens, more of them in layers whose ranking is spread out",
               "ActQKV: Xiao et al. 2025, arXiv:2502.13542 (formulas: our definition)");

}  // namespace

}  // namespace kvlab
