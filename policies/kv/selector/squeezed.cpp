#include <cmath>

#include "kernels/select/cluster/cluster.h"
#include "policies/kv/scorer/score_pool.h"
#include "policies/kv/selector/selection.h"
#include "policies/kv/step_arrays.h"

namespace kvlab {

namespace {

// Generated tokens are always read.
class Squeezed final : public Budgeted<QuerySelector<UnitTraffic>> {
 public:
  explicit Squeezed(Params& p)
      : clusters_frac_(p.optional<double>("clusters_frac", 0.05, 1e-4, 1, "clusters per prompt token and KV head")),
        drop_frac_(p.optional<double>("drop_frac", 0.7, 0, 1, "prompt tokens below the threshold on the calibrating queries")),
        window_(p.optional<std::int32_t>("window_tokens", 100, 1, 4096, "last prompt queries that calibrate the threshold")),
        rounds_(p.optional<std::int32_t>("rounds", 10, 1, 1000, "rounds of k-means")) {}

  [[nodiscard]] Needs needs() const override { return {.step_queries = true, .window_queries = window_}; }
  void step_key(const SeqStep& seq, StepKey& key) const override { key.add(seq.prompt_tokens, StepKey::kForEver), key.add(seq.end()); }
  void whole_key(const SeqStep& seq, StepKey& key) const override { key.add(seq.prompt_tokens, StepKey::kForEver); }
  [[nodiscard]] Lengths affine_lengths(std::int32_t) const override { return Lengths::all(); }

  // Keeps the threshold after evictions.
  void update(LayerStep& step) override {
    const std::int32_t n = step.kv.num_rows;
    std::int32_t* tokens = step.ops.host_ints(n);
    for (std::int32_t r = 0; r < n; ++r) {
      Prompt& prompt = prompts_.at(step, r);
      const SeqStep& seq = seq_of(step, r);
      tokens[r] = 0;
      if (seq.end() < seq.prompt_tokens || prompt.mark.grew_to(seq, step.kv.len[r])) continue;
      tokens[r] = std::clamp(step.kv.len[r] - (seq.end() - seq.prompt_tokens), 0, seq.decoding() ? older_tokens(step, r) : step.kv.len[r]);
      const auto clusters = static_cast<std::int32_t>(std::ceil(clusters_frac_ * tokens[r]));
      prompt = {{step.kv.len[r], seq.end()}, tokens[r], tokens[r] == 0 ? 0 : std::max(1, clusters)};
    }
    if (all_whole(step, tokens)) return;
    step.ops(ClusterKeys{.kv = step.kv,
                         .tokens = tokens,
                         .clusters = clusters(step),
                         .rounds = rounds_,
                         .cluster_of = cluster_of_.rows(step, [&](std::int32_t r) { return tokens[r]; }),
                         .centroids = centroids(step),
                         .sizes = sizes(step)});
    calibrate(step, tokens);
  }

  Selection select(LayerStep& step) override {
    const std::int32_t n = step.kv.num_rows;
    const std::int32_t* tail = per_row(step, [&](std::int32_t r) { return prompts_.at(step, r).tokens; });
    if (all_whole(step, tail)) return {};
    SelectUnits chosen{.num_rows = n,
                       .kv_heads = step.kv.kv_heads,
                       .kind = SelectUnits::Kind::kClusters,
                       .lists = {.rows = cluster_of_.rows(step, [](std::int32_t) { return 0; }), .count = tail}};
    chosen.score_first = prefix_sums(step, [&](std::int32_t r) { return prompts_.at(step, r).clusters; });
    PageScores weights = page_scores(step, centroids(step), chosen.score_first, PageScores::Kind::kDot, PageScores::Heads::kMean);
    weights.softmax = weights.weighs_sizes = true;
    weights.sizes = sizes(step);
    chosen.scores = run_scores(step, weights);
    chosen.threshold = threshold_.sequences(step, [](std::int32_t) { return 1; });
    chosen.first = prefix_sums(step, [&](std::int32_t r) { return tail[r]; });
    chosen.unit = step.ops.ints(chosen.first[n]);
    chosen.count = per_row(step, [&](std::int32_t r) { return tail[r]; });
    step.ops(chosen);
    settle_rows(step, "selected_tokens", chosen.count);
    const UnitLists lists{.first = chosen.first, .unit = chosen.unit, .count = chosen.count};
    traffic_.track(step, lists);
    return expand(step, {.lists = lists, .tail = tail});
  }

  [[nodiscard]] TierBytes resident(const ModelShape& model, const KvRows& kv, const TierBytes& held) const override {
    return held.with_gpu(sum_rows(kv, [&](std::int32_t r) {
      const auto clusters = static_cast<std::int64_t>(std::ceil(clusters_frac_ * kv.len[r]));
      return clusters * (static_cast<std::int64_t>(model.head_dim) * model.kv_bytes + 4) + 4LL * kv.len[r];
    }));
  }

 private:
  struct Prompt {
    RowMark mark;
    std::int32_t tokens = 0, clusters = 0;
  };

  const std::int32_t* clusters(const LayerStep& step) {
    return per_row(step, [&](std::int32_t r) { return prompts_.at(step, r).clusters; });
  }
  float* const* centroids(const LayerStep& step) {
    return centroids_.rows(step,
                           [&](std::int32_t r) { return static_cast<std::int64_t>(prompts_.at(step, r).clusters) * step.kv.head_dim; });
  }
  std::int32_t* const* sizes(const LayerStep& step) {
    return sizes_.rows(step, [&](std::int32_t r) { return prompts_.at(step, r).clusters; });
  }

  void calibrate(LayerStep& step, const std::int32_t* tokens) {
    const std::int32_t sequences = step.kv.num_sequences(), heads = step.kv.kv_heads;
    std::vector<Queries> queries = last_queries(step.in.window, window_, step.model);
    std::vector<double> keep;
    for (std::int32_t s = 0; s < sequences; ++s) {
      const auto at = static_cast<std::size_t>(s);
      if (!step.seqs[at].completes_prompt()) queries[at].count = 0;
      const std::int32_t clustered = *std::max_element(tokens + s * heads, tokens + (s + 1) * heads);
      const std::int32_t budget = budget_.of(step.seqs[at].prompt_tokens);
      keep.push_back(budget == 0 || clustered == 0 ? 1 - drop_frac_ : std::min(1.0, static_cast<double>(budget) / clustered));
    }
    step.ops(ClusterThreshold{.num_rows = step.kv.num_rows,
                              .kv_heads = heads,
                              .group = step.kv.group,
                              .head_dim = step.kv.head_dim,
                              .kv_bytes = step.kv.kv_bytes,
                              .queries = queries.data(),
                              .clusters = clusters(step),
                              .centroids = centroids(step),
                              .sizes = sizes(step),
                              .keep_frac = keep.data(),
                              .threshold = threshold_.sequences(step, [](std::int32_t) { return 1; })});
  }

  double clusters_frac_, drop_frac_;
  std::int32_t window_, rounds_;
  PerRow<Prompt> prompts_{*this};
  RowMemory<std::int32_t> cluster_of_{*this}, sizes_{*this};
  RowMemory<float> centroids_{*this}, threshold_{*this};  // threshold_ per sequence
};

KVLAB_REGISTER(Selector, Squeezed, "squeezed", "prompt tokens whose cluster of keys outweighs a calibrated threshold",
               "Squeezed Attention: Hooper et al. 2024, arXiv:2411.09688");

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
