#include <algorithm>

#include "kernels/select/page_means/page_means.h"
#include "policies/kv/selector/budget_share.h"
#include "policies/kv/selector/probe_query/probe_query.h"
#include "policies/kv/selector/selection.h"

namespace kvlab {

namespace {

// Chunks ranked by a probe query, a mean of the last tokens' queries with more weight on outliers; layers with an even ranking load more.
// ActQKV, Xiao et al. 2025, arXiv:2502.13542 (known from its abstract; the formulas are our definition).
class ActQkv final : public QuerySelector<UnitTraffic>, public TakesShare {
 public:
  explicit ActQkv(Params& p)
      : chunk_(p.optional<std::int32_t>("chunk_tokens", 32, 1, 1 << 16, "tokens of a chunk, judged by their mean key")),
        window_(p.optional<std::int32_t>("window_tokens", 64, 1, 4096, "last queries that make the probe")),
        sinks_(p.optional<std::int32_t>("sink_tokens", 128, 0, 1 << 20, "first tokens attended to, rounded down to chunks")),
        recent_(p.optional<std::int32_t>("recent_tokens", 512, 1, 1 << 20, "newest tokens attended to, rounded up to chunks")),
        budget_{p.optional<std::int32_t>("budget_tokens", 2048, 1, 1 << 24, "tokens attended to per KV head, on average over layers")} {}

  [[nodiscard]] std::int32_t layer_kind(std::int32_t layer) const override { return layer; }
  [[nodiscard]] Needs needs() const override {
    Needs needs = QuerySelector::needs();
    needs.window_queries = window_;
    return needs;
  }
  // Sinks and newest tokens leave at least a quarter of the budget to the ranked chunks.
  void step_key(const SeqStep& seq, StepKey& key) const override {
    key.add(std::min(window_, seq.end()), seq.end() < window_ ? 1 : StepKey::kForEver);
  }
  bool set_budget(std::int32_t tokens) override {
    budget_ = {tokens};
    is_set_ = true;
    return true;
  }
  void set_share(const Budget& share) override {
    budget_ = share;
    is_set_ = true;
  }
  void forget(std::int32_t index) override {
    progress_.forget(index);
    means_.forget(index);
    ring_.forget(index);
    held_.forget(index);
    entropies_.forget(index);
    QuerySelector::forget(index);
  }

  void update(LayerStep& step) override {
    PageMeans means;
    means.kv = step.kv;
    means.span_tokens = means.stride_tokens = chunk_;
    means.from = progress_.advance(step);
    means.means = rows(step);
    step.ops(means);
    remember_queries(step);
  }

  Selection select(LayerStep& step) override {
    const std::int32_t n = step.kv.num_rows;
    const std::int32_t* tail = per_row(step.ops, n, [&](std::int32_t r) {
      const Sizes size = sizes(step, r);
      const std::int32_t chunks = std::min(step.kv.len[r] - size.recent, older_tokens(step, r)) / chunk_;
      const bool whole = step.kv.len[r] <= size.budget || chunks <= size.sinks / chunk_ + ranked(size, step.kv.len[r], chunks * chunk_);
      return whole ? 0 : chunks * chunk_;
    });
    if (all_whole(n, tail)) return {};
    const std::int64_t* first = prefix_sums(step.ops, n, [&](std::int32_t r) { return tail[r] / chunk_; });
    float* scores = judge(step, first);
    const std::int32_t* keep = share(step, first, scores, tail);
    const std::int32_t* head = per_row(step.ops, n, [&](std::int32_t r) { return tail[r] == 0 ? 0 : sizes(step, r).sinks / chunk_; });
    mask_ends(step.ops, n, first, head, per_row(step.ops, n, [&](std::int32_t r) { return tail[r] / chunk_; }), scores);
    ExpandUnits tokens;
    tokens.num_rows = n;
    tokens.lists = best_units(step.ops, n, 1, first, scores, keep);
    traffic_.track(step, tokens.lists);
    tokens.unit_tokens = chunk_;
    tokens.head = per_row(step.ops, n, [&](std::int32_t r) { return head[r] * chunk_; });
    tokens.tail = tail;
    tokens.len = step.kv.len;
    return expand(step.ops, tokens);
  }

  [[nodiscard]] TierBytes resident(const ModelShape& model, const KvRows& kv, const TierBytes& held) const override {
    TierBytes bytes = held;  // mean keys, and the last queries of each sequence
    for (std::int32_t r = 0; r < kv.num_rows; ++r) bytes.gpu += (kv.len[r] + chunk_ - 1LL) / chunk_ * model.head_dim * model.kv_bytes;
    bytes.gpu += 2LL * kv.num_sequences() * window_ * model.q_heads * model.head_dim;
    return bytes;
  }

 private:
  struct Sizes {
    std::int32_t budget, sinks, recent;
  };
  [[nodiscard]] Sizes sizes(const LayerStep& step, std::int32_t r) const {
    const std::int32_t budget = tokens_of(budget_, step, r);
    if (!is_set_) return {budget, sinks_, recent_};
    return {budget, std::min(sinks_, budget / 4), std::min(recent_, std::max(1, budget / 2))};
  }

  // Ranked chunks on average, between the sinks and the tail.
  [[nodiscard]] std::int32_t ranked(const Sizes& size, std::int32_t len, std::int32_t tail) const {
    return std::max(1, (size.budget - size.sinks / chunk_ * chunk_ - (len - tail)) / chunk_);
  }
  float* const* rows(const LayerStep& step) {
    return means_.rows(step, [&](std::int32_t r) { return (step.kv.len[r] + chunk_ - 1LL) / chunk_ * step.kv.head_dim; });
  }

  // The prompt's last queries when it is complete, then each step's.
  void remember_queries(LayerStep& step) {
    const std::int32_t sequences = step.kv.num_sequences(), width = step.model.q_heads * step.model.head_dim;
    std::vector<Queries> fresh;
    for (std::int32_t s = 0; s < sequences; ++s) {
      const auto at = static_cast<std::size_t>(s);
      const SeqStep& seq = step.seqs[at];
      fresh.push_back(seq.decoding() ? step.in.step[at] : seq.completes_prompt() ? step.in.window[at] : Queries{});
      held_.of_sequence(step, s) = seq.decoding() || seq.completes_prompt() ? std::min(window_, seq.end()) : 0;
    }
    QueryRing ring;
    ring.num_sequences = sequences;
    ring.width = width;
    ring.capacity = window_;
    ring.queries = fresh.data();
    ring.ring = ring_.sequences(step, [&](std::int32_t) { return static_cast<std::int64_t>(window_) * width; });
    step.ops(ring);
  }

  // Probabilities of the chunks under the probe.
  float* judge(LayerStep& step, const std::int64_t* first) {
    const std::int32_t sequences = step.kv.num_sequences();
    ProbeQuery probe;
    probe.num_sequences = sequences;
    probe.width = step.model.q_heads * step.model.head_dim;
    probe.held = per_row(step.ops, sequences, [&](std::int32_t s) { return held_.of_sequence(step, s); });
    probe.ring = ring_.sequences(step, [](std::int32_t) { return 0; });
    probe.probe = step.ops.floats(static_cast<std::int64_t>(sequences) * probe.width);
    step.ops(probe);
    std::vector<Queries> probes;
    for (std::int32_t s = 0; s < sequences; ++s)
      probes.push_back({probe.probe == nullptr ? nullptr : probe.probe + static_cast<std::int64_t>(s) * probe.width, 1, 0});
    PageScores scores = page_scores(step, rows(step), first);
    scores.queries = probes.data();
    scores.kind = PageScores::Kind::kDot;
    scores.heads = PageScores::Heads::kMean;
    scores.softmax = true;
    scores.scores = step.ops.floats(first[step.kv.num_rows]);
    step.ops(scores);
    return scores.scores;
  }

  // Chunks of each row, sinks not counted: what the layer's entropy makes of the average.
  const std::int32_t* share(LayerStep& step, const std::int64_t* first, const float* scores, const std::int32_t* tail) {
    const std::int32_t n = step.kv.num_rows;
    EntropyShare share;
    share.num_sequences = step.kv.num_sequences();
    share.kv_heads = step.kv.kv_heads;
    share.layer = step.layer;
    share.num_layers = step.model.num_layers;
    share.first = first;
    share.probabilities = scores;
    const std::int32_t* average =
        per_row(step.ops, n, [&](std::int32_t r) { return tail[r] == 0 ? 0 : ranked(sizes(step, r), step.kv.len[r], tail[r]); });
    share.average = average;
    const LayerStep all_layers{step.ops, step.model, 0, step.seqs, step.kv, step.in, step.seed, step.memory};
    share.entropies = entropies_.sequences(all_layers, [&](std::int32_t) { return step.model.num_layers; });
    share.keep = per_row(step.ops, n, [&](std::int32_t r) { return std::min(2 * average[r], tail[r] / chunk_); });
    step.ops(share);
    step.ops.settle("selected_chunks", step.layer, {share.keep, static_cast<std::size_t>(n)});
    for (std::int32_t r = 0; r < n; ++r)
      share.keep[r] = std::min(share.keep[r], std::max(0, tail[r] / chunk_ - sizes(step, r).sinks / chunk_));
    return share.keep;
  }

  std::int32_t chunk_, window_, sinks_, recent_;
  Budget budget_;
  bool is_set_ = false;  // by the experiment
  RowProgress progress_;
  RowMemory<float> means_, ring_, entropies_;  // ring_ per sequence; entropies_ too, for all layers
  PerRow<std::int32_t> held_;
};

KVLAB_REGISTER(Selector, ActQkv, "act_qkv",
               "chunks ranked by a probe query of the last tokens, more of them in layers whose ranking is spread out",
               "ActQKV: Xiao et al. 2025, arXiv:2502.13542 (formulas: our definition)");

}  // namespace

}  // namespace kvlab
