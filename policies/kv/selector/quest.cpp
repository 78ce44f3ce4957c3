#include <algorithm>

#include "kernels/allocate/count_scores_op.h"
#include "kernels/score/pool1d_op.h"
#include "kernels/select/copy_queries_op.h"
#include "kernels/select/mean_query_op.h"
#include "policies/kv/selector/paged_selector.h"

namespace kvlab {

namespace {

// The newest page is always read.
class Quest final : public PagedSelector {
 public:
  explicit Quest(Params& p) {
    const auto page = p.optional<std::int32_t>("page_tokens", 16, 1, 4096, "tokens of a page");
    const auto budget =
        p.optional<std::int32_t>("budget_tokens", 1024, 1, 1 << 24, "tokens attended to per KV head, the newest page included");
    unites_ = p.choice("group", {{"max", false}, {"union", true}}, false,
                       "query heads of a KV head: the best bound counts, or each chooses and all is read");
    const auto dense = p.optional<std::int32_t>("dense_layers", 2, 0, 1024, "first layers that attend to everything");
    min_pages_ = p.optional<std::int32_t>("min_pages", 3, 1, 4096, "pages read whatever the budget");
    set_sizes({.unit_tokens = page, .dense_layers = dense, .budget = {budget}});
  }

  // With a budget share of the prompt, no other part cuts rows.
  void step_key(const SeqStep& seq, StepKey& key) const override {
    if (budget_.tokens > 0) return;
    const std::int32_t tokens = budget_.of(seq.prompt_tokens), end = seq.end();
    key.add(end <= tokens ? 1 : 0, end <= tokens ? tokens - end + 1 : StepKey::kForEver);
  }
  [[nodiscard]] Lengths affine_lengths(std::int32_t len) const override {
    Lengths fits = Lengths::all();
    if (budget_.tokens > 0) fits = len <= budget_.tokens ? Lengths{0, budget_.tokens + 1} : Lengths{budget_.tokens + 1, INT32_MAX};
    const std::int32_t page = unit_tokens(), in_page = (len - 1) % page;
    return in_page == 0 || in_page == page - 1 ? Lengths::only(len) : fits.within({len - in_page + 1, len - in_page + page - 1});
  }

 protected:
  // The newest page counts toward the budget.
  [[nodiscard]] Plan plan(const LayerStep& step, std::int32_t r) const override {
    const std::int32_t pages = full_units(step, r), chosen = std::max(min_pages_, tokens(step, r) / unit_tokens()) - 1;
    return step.kv.len[r] <= tokens(step, r) || pages <= chosen ? Plan{} : Plan{pages, chosen};
  }
  UnitLists choose(LayerStep& step, const RowPlans& rows) override {
    return best_by(step, page_scores(step, summaries_.rows(step), rows.first), unites_, rows);
  }

 private:
  bool unites_ = false;
  std::int32_t min_pages_ = 0;
};

KVLAB_REGISTER(Selector, Quest, "quest", "pages whose key bounds promise the largest logits",
               "Quest: Tang et al. 2024, arXiv:2406.10774, algorithm 1");

// The gate without training. A KV head reads the union of its query heads' chunks.
class Moba final : public PagedSelector {
 public:
  explicit Moba(Params& p) {
    const auto chunk = p.optional<std::int32_t>("chunk_tokens", 2048, 1, 1 << 20, "tokens of a chunk");
    top_ = p.optional<std::int32_t>("top_chunks", 3, 1, 1 << 20, "chunks read by each query head, the step's own included");
    const auto dense = p.optional<std::int32_t>("dense_layers", 0, 0, 1024, "first layers that attend to everything");
    set_sizes({.unit_tokens = chunk, .dense_layers = dense, .summary = KeySummaries::Kind::kMeans});
  }

 protected:
  // Budgets are per query head, in whole chunks, at least two.
  [[nodiscard]] Plan plan(const LayerStep& step, std::int32_t r) const override {
    const std::int32_t top = is_given(budget_) ? std::max(2, tokens(step, r) / unit_tokens()) : top_;
    const bool fits = is_given(budget_) && step.kv.len[r] <= tokens(step, r);
    return fits || full_units(step, r) < top ? Plan{} : Plan{full_units(step, r), top - 1};
  }
  UnitLists choose(LayerStep& step, const RowPlans& rows) override {
    return best_by(step, page_scores(step, summaries_.rows(step), rows.first, PageScores::Kind::kDot), true, rows);
  }

 private:
  std::int32_t top_ = 0;
};

KVLAB_REGISTER(Selector, Moba, "moba", "chunks whose mean key matches a query head best, and the step's own",
               "MoBA: Lu et al. 2025, arXiv:2502.13189");

struct InfLlm2Options {
  std::int32_t kernel_tokens, stride_tokens, block_tokens, initial_blocks, window_tokens, top_blocks, dense_tokens;
  explicit InfLlm2Options(Params& p)
      : kernel_tokens(p.optional<std::int32_t>("kernel_tokens", 32, 1, 1 << 16, "tokens that share a mean key")),
        stride_tokens(p.optional<std::int32_t>("stride_tokens", 16, 1, 1 << 16, "tokens from one mean key to the next")),
        block_tokens(p.optional<std::int32_t>("block_tokens", 64, 1, 1 << 16, "tokens of a block")),
        initial_blocks(p.optional<std::int32_t>("initial_blocks", 1, 0, 1 << 16, "first blocks attended to")),
        window_tokens(p.optional<std::int32_t>("window_tokens", 2048, 1, 1 << 24, "newest tokens attended to, rounded up to blocks")),
        top_blocks(p.optional<std::int32_t>("top_blocks", 16, 1, 1 << 20, "blocks attended to beside the window, initial ones included")),
        dense_tokens(p.optional<std::int32_t>("dense_tokens", 8192, 0, 1 << 30, "rows shorter than this are attended to as a whole")) {
    if (block_tokens % stride_tokens != 0) p.fail_at("stride_tokens", "'block_tokens' must be a multiple of 'stride_tokens'");
    if (kernel_tokens % stride_tokens != 0) p.fail_at("stride_tokens", "'kernel_tokens' must be a multiple of 'stride_tokens'");
    if (initial_blocks > top_blocks) p.fail_at("initial_blocks", "'initial_blocks' cannot exceed 'top_blocks'");
  }
};

// Without training. One choice per KV head.
class InfLlm2 final : public PagedSelector {
 public:
  explicit InfLlm2(Params& p) : own_(p) {
    set_sizes({.unit_tokens = own_.block_tokens,
               .summary = KeySummaries::Kind::kMeans,
               .stride_tokens = own_.stride_tokens,
               .span_tokens = own_.kernel_tokens});
  }

 protected:
  // The window takes at most half of a budget; rows within it are read whole.
  [[nodiscard]] Plan plan(const LayerStep& step, std::int32_t r) const override {
    std::int32_t window = own_.window_tokens, top = own_.top_blocks, initial = own_.initial_blocks, dense = own_.dense_tokens;
    if (is_given(budget_)) {
      const std::int32_t budget = tokens(step, r);
      window = std::clamp(budget / 2, 1, window);
      top = std::max(1, (budget - window) / unit_tokens());
      initial = std::min(initial, top), dense = std::min(dense, budget + 1);
    }
    const std::int32_t blocks = std::min(step.kv.len[r] - window, older_tokens(step, r)) / unit_tokens();
    return step.kv.len[r] < dense || blocks <= top ? Plan{} : Plan{blocks, top - initial, initial};
  }
  UnitLists choose(LayerStep& step, const RowPlans& rows) override {
    const std::int32_t n = step.kv.num_rows;
    const std::int64_t* const first =
        prefix_sums(step, [&](std::int32_t r) { return rows.end[r] == 0 ? 0 : summaries_.units(step.kv.len[r]); });
    PageScores scores = page_scores(step, summaries_.rows(step), first, PageScores::Kind::kDot, PageScores::Heads::kSum);
    scores.softmax = true;
    const float* of_means = run_scores(step, scores);
    Pool1d blocks{.num_rows = n,
                  .first = rows.first,
                  .kind = Pool1d::Kind::kBlockMax,
                  .stride = own_.block_tokens / own_.stride_tokens,
                  .before = own_.kernel_tokens / own_.stride_tokens - 1,
                  .unit_first = first,
                  .units = of_means};
    blocks.width = blocks.stride + blocks.before;
    blocks.scores = step.ops.floats(rows.first[n]);
    step.ops(blocks);
    mask_ends(step, rows.first, rows.head, rows.end, blocks.scores);
    return best_units(step, rows.first, blocks.scores, rows.keep);
  }

 private:
  InfLlm2Options own_;
};

KVLAB_REGISTER(Selector, InfLlm2, "infllm2", "blocks judged by attention over mean keys of overlapping windows",
               "InfLLM v2: MiniCPM Team 2025, arXiv:2506.07900");

class LServe final : public PagedSelector {
 public:
  explicit LServe(Params& p) {
    const auto page = p.optional<std::int32_t>("page_tokens", 64, 1, 1 << 16, "tokens of a physical page");
    const auto logical = p.optional<std::int32_t>("logical_tokens", 16, 1, 1 << 16, "tokens whose keys share one pair of bounds");
    const auto budget =
        p.optional<std::int32_t>("budget_tokens", 4096, 1, 1 << 24, "tokens attended to per KV head, the newest page included");
    reuse_steps_ = p.optional<std::int32_t>("reuse_steps", 4, 1, 1 << 16, "decode steps that one choice serves");
    unites_ = p.choice("group", {{"max", false}, {"union", true}}, true,
                       "query heads of a KV head: the best bound counts, or each chooses and all is read");
    const auto dense = p.optional<std::int32_t>("dense_layers", 0, 0, 1024, "first layers that attend to everything");
    if (page % logical != 0) p.fail_at("logical_tokens", "'page_tokens' must be a multiple of 'logical_tokens'");
    ratio_ = page / logical;
    set_sizes({.unit_tokens = page, .dense_layers = dense, .budget = {budget}, .stride_tokens = logical});
  }
  void step_key(const SeqStep& seq, StepKey& key) const override { key.add(age(seq)); }

  Selection select(LayerStep& step) override {
    if (is_dense(step.layer)) return {};
    refresh(step);
    const std::int32_t* tail = choices_.tails(step);
    if (all_whole(step, tail)) return {};
    return read(step, choices_.lists(step), tail, nullptr);
  }

 protected:
  [[nodiscard]] Plan plan(const LayerStep& step, std::int32_t r) const override {
    const std::int32_t old = age(seq_of(step, r)), budget = tokens(step, r);
    const std::int32_t pages = std::max(0, older_tokens(step, r) - old) / unit_tokens(), chosen = std::max(1, budget / unit_tokens() - 1);
    return step.kv.len[r] - old <= budget || pages <= chosen ? Plan{} : Plan{pages, chosen};
  }
  UnitLists choose(LayerStep& step, const RowPlans& rows) override {
    const std::int32_t n = step.kv.num_rows, lists = unites_ ? step.kv.group : 1;
    const auto pages_of = [&](std::int32_t i) { return rows.first[i / lists + 1] - rows.first[i / lists]; };
    const std::int64_t* logical_first = prefix_sums(step, [&](std::int32_t r) { return ratio_ * (rows.first[r + 1] - rows.first[r]); });
    PageScores scores = page_scores(step, summaries_.rows(step), logical_first);
    scores.heads = unites_ ? PageScores::Heads::kEach : PageScores::Heads::kMax;
    scores.scores = step.ops.floats(logical_first[n] * lists);
    step.ops(scores);
    Pool1d pages{.num_rows = n * lists, .width = ratio_, .kind = Pool1d::Kind::kBlockMax, .stride = ratio_};
    pages.unit_first = prefix_sums(step.ops, n * lists, [&](std::int32_t i) { return ratio_ * pages_of(i); });
    pages.units = scores.scores;
    pages.first = prefix_sums(step.ops, n * lists, pages_of);
    pages.scores = step.ops.floats(rows.first[n] * lists);
    step.ops(pages);
    const UnitLists best = best_units(step.ops, n, lists, rows.first, pages.scores, rows.keep);
    return unites_ ? united(step, best, rows.first, rows.keep) : best;
  }

 private:
  // From the prompt's end, so that work depends on lengths only.
  [[nodiscard]] std::int32_t age(const SeqStep& seq) const { return std::max(0, seq.end() - seq.prompt_tokens - 1) % reuse_steps_; }

  void refresh(LayerStep& step) {
    const std::int32_t n = step.kv.num_rows;
    std::int32_t *keep = step.ops.host_ints(n), *end = step.ops.host_ints(n);
    for (std::int32_t r = 0; r < n; ++r) {
      KeptUnits::Choice& c = choices_.at(step, r);
      keep[r] = end[r] = 0;
      const SeqStep& seq = seq_of(step, r);
      if (age(seq) > 0 && c.mark.grew_to(seq, step.kv.len[r])) continue;
      const Plan plan = this->plan(step, r);
      c = {};
      if (plan.units > 0) c = {{step.kv.len[r], seq.end()}, plan.units * unit_tokens(), plan.keep};
      keep[r] = plan.keep, end[r] = plan.units;
    }
    if (all_whole(step, keep)) return;
    const std::int64_t* first = prefix_sums(step, [&](std::int32_t r) { return end[r]; });
    const UnitLists chosen = choose(step, {first, keep, nullptr, end});
    choices_.keep(step, chosen);
    for (std::int32_t r = 0; r < n; ++r)
      if (keep[r] > 0) choices_.at(step, r).count = static_cast<std::int32_t>(chosen.size(r));
  }

  std::int32_t ratio_ = 1, reuse_steps_ = 1;
  bool unites_ = false;
  KeptUnits choices_{*this};  // pages
};

KVLAB_REGISTER(Selector, LServe, "lserve", "large pages judged by the key bounds of their logical pages, chosen every few steps",
               "LServe: Yang et al. 2025, arXiv:2502.14866");

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
