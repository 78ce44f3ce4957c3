#include "kernels/select/page_summaries_op.h"
#include "policies/kv/selector/chunk_outliers_op.h"
#include "policies/kv/selector/selection.h"

namespace kvlab {

namespace {

// Keys are in CPU memory too, unless the format has low-rank keys on the GPU. As in the authors' code, the budget counts only chosen chunks
// and scales the outliers.
class ShadowKv final : public Budgeted<QuerySelector<TierTraffic>> {
 public:
  explicit ShadowKv(Params& p)
      : chunk_(p.optional<std::int32_t>("chunk_tokens", 8, 1, 4096, "tokens of a chunk")),
        own_budget_(p.optional<std::int32_t>("budget_tokens", 2048, 1, 1 << 24,
                                             "tokens of chunks chosen by their means; what is always read comes on top")),
        outliers_(
            p.optional<std::int32_t>("outlier_chunks", 48, 0, 1 << 20,
                                     "chunks always read, those of lowest fit to their mean; another budget changes them in proportion")),
        local_(p.optional<std::int32_t>("local_chunks", 4, 0, 1 << 20, "last chunks of the prompt, always read")),
        keys_fetched_(p.choice("keys", {{"low_rank", false}, {"fetched", true}}, false,
                               "whether keys stay on the GPU in a low-rank format or are brought too")) {
    budget_ = {own_budget_};
  }

  void step_key(const SeqStep& seq, StepKey& key) const override { key.add(seq.prompt_tokens / chunk_, StepKey::kForEver); }
  [[nodiscard]] Lengths affine_lengths(std::int32_t) const override { return Lengths::all(); }

  [[nodiscard]] Lower lower(std::int32_t) const override { return keys_fetched_ ? Lower::kKeysAndValues : Lower::kValues; }
  Selection stays(LayerStep& step) override { return of_prompts(step, true); }

  void update(LayerStep& step) override {
    const std::int32_t n = step.kv.num_rows;
    const std::int32_t* covered = progress_.advance(step);
    // When the prompt is complete, and again after a row lost tokens.
    const std::int32_t* built = per_row(step, [&](std::int32_t r) {
      const SeqStep& seq = seq_of(step, r);
      return seq.completes_prompt() || (seq.decoding() && covered[r] == 0) ? 1 : 0;
    });
    if (std::none_of(built, built + n, [](std::int32_t b) { return b == 1; })) return;
    for (std::int32_t r = 0; r < n; ++r)
      if (built[r] == 1) chunks_.at(step, r) = std::max(0, held_prompt_tokens(step, r) / chunk_ - local_);
    const std::int32_t* from = per_row(step, [&](std::int32_t r) { return built[r] == 1 ? 0 : step.kv.len[r]; });
    step.ops(PageSummaries{step.kv, chunk_, chunk_, from, means(step)});
    step.ops(ChunkOutliers{.kv = step.kv,
                           .chunk_tokens = chunk_,
                           .chosen = built,
                           .chunks = per_row(step, [&](std::int32_t r) { return chunks_.at(step, r); }),
                           .outliers = per_row(step, [&](std::int32_t r) { return num_outliers(step, r); }),
                           .means = means(step),
                           .outlier = outlier(step),
                           .other = other(step)});
    traffic_.begin(step, [&](std::int32_t r) { return fits(step, r) ? 0 : chunks_.at(step, r); });
  }

  Selection exact_tokens(LayerStep& step) override { return keys_fetched_ ? Selection{} : of_prompts(step, false); }

  Selection select(LayerStep& step) override {
    const std::int32_t* outliers = per_row(step, [&](std::int32_t r) { return num_outliers(step, r); });
    const std::int64_t* first = prefix_sums(step, [&](std::int32_t r) { return chunks_.at(step, r) - outliers[r]; });
    const std::int32_t* keep =
        per_row(step, [&](std::int32_t r) { return std::min(chosen_chunks(step, r), static_cast<std::int32_t>(first[r + 1] - first[r])); });
    if (traffic_.reads_all(step, keeps_all(step, first, keep))) return {};
    const UnitLists chosen = choose(step, first, keep);
    const UnitLists read = with_outliers(step, chosen, keep, outliers);
    const std::int32_t* tail = per_row(step, [&](std::int32_t r) { return chunks_.at(step, r) * chunk_; });
    traffic_.track(step, chosen, read, (keys_fetched_ ? 2LL : 1LL) * chunk_ * step.kv.head_dim * step.kv.kv_bytes);
    return expand(step, {.lists = read, .unit_tokens = chunk_, .tail = tail});
  }

  // Values are fetched while keys are rebuilt.
  [[nodiscard]] FetchBeside fetches_beside() const override { return keys_fetched_ ? FetchBeside::kNothing : FetchBeside::kKeyRebuild; }

  // Mean keys, and exact K and V of tokens always read and of the budget's buffer. Omits decoded tokens.
  [[nodiscard]] TierBytes resident(const ModelShape& model, const KvRows& kv, const TierBytes& held) const override {
    TierBytes bytes = held;
    const std::int64_t line = static_cast<std::int64_t>(model.head_dim) * model.kv_bytes;
    for (std::int32_t r = 0; r < kv.num_rows; ++r) {
      const std::int32_t budget = budget_.of(kv.len[r]);
      const std::int64_t n = kv.len[r],
                         read = std::min<std::int64_t>(n, budget + static_cast<std::int64_t>(outliers(budget) + local_) * chunk_);
      bytes = to_host(bytes, (n - read) * line * (keys_fetched_ ? 2 : 1));
      bytes.gpu += n / chunk_ * line + (keys_fetched_ ? 0 : read * line);
    }
    return bytes;
  }

 private:
  [[nodiscard]] std::int32_t num_outliers(const LayerStep& step, std::int32_t r) {
    return std::min(outliers(tokens_of(budget_, step, r)), chunks_.at(step, r));
  }
  [[nodiscard]] std::int32_t outliers(std::int32_t budget) const {
    return static_cast<std::int32_t>(std::int64_t{outliers_} * budget / own_budget_);
  }
  [[nodiscard]] std::int32_t chosen_chunks(const LayerStep& step, std::int32_t r) const {
    return std::max(1, tokens_of(budget_, step, r) / chunk_);
  }
  // Every chunk is an outlier or chosen.
  [[nodiscard]] bool fits(const LayerStep& step, std::int32_t r) {
    return chunks_.at(step, r) - num_outliers(step, r) <= chosen_chunks(step, r);
  }

  // Rows that complete a prompt in this step; `whole`: all of rows that fit.
  Selection of_prompts(LayerStep& step, bool whole) {
    const auto completes = [&](std::int32_t r) { return seq_of(step, r).completes_prompt(); };
    if (std::none_of(step.seqs.begin(), step.seqs.end(), [](const SeqStep& s) { return s.completes_prompt(); })) return {};
    const auto is_whole = [&](std::int32_t r) { return whole && fits(step, r); };
    const std::int32_t* count = per_row(step, [&](std::int32_t r) { return completes(r) && !is_whole(r) ? num_outliers(step, r) : 0; });
    const std::int32_t* tail = per_row(step, [&](std::int32_t r) {
      return !completes(r) ? step.kv.len[r] : is_whole(r) ? 0 : chunks_.at(step, r) * chunk_;
    });
    return expand(step, {.lists = {.rows = outlier(step), .count = count}, .unit_tokens = chunk_, .tail = tail});
  }

  float* const* means(const LayerStep& step) {
    return means_.rows(step, [&](std::int32_t r) { return (step.kv.len[r] + chunk_ - 1LL) / chunk_ * step.kv.head_dim; });
  }
  std::int32_t* const* outlier(const LayerStep& step) {
    return outlier_.rows(step, [&](std::int32_t r) { return outliers(tokens_of(budget_, step, r)); });
  }
  std::int32_t* const* other(const LayerStep& step) {
    return other_.rows(step, [&](std::int32_t r) { return chunks_.at(step, r); });
  }

  // The softmax is over chunks other than outliers.
  UnitLists choose(LayerStep& step, const std::int64_t* first, const std::int32_t* keep) {
    const std::int32_t n = step.kv.num_rows;
    CopyUnits all;
    all.num_rows = n;
    all.lists.rows = other(step);
    all.kind = CopyUnits::Kind::kAll;
    all.first = first;
    all.out = step.ops.ints(first[n]);
    step.ops(all);
    PageScores scores = page_scores(step, means(step), first, PageScores::Kind::kDot);
    scores.unit = all.out;
    scores.lists_units = scores.softmax = true;
    const UnitLists best = best_units(step, first, run_scores(step, scores), keep);
    return pick_units(step, {.first = first, .unit = all.out}, best);
  }

  UnitLists with_outliers(LayerStep& step, const UnitLists& chosen, const std::int32_t* keep, const std::int32_t* outliers) {
    const std::int32_t n = step.kv.num_rows;
    std::int32_t* const* outlier_rows = outlier(step);
    lists_.assign(static_cast<std::size_t>(2 * n), nullptr);
    for (std::int32_t r = 0; r < n && step.ops.computes(); ++r)
      lists_[static_cast<std::size_t>(2 * r)] = chosen.row(r), lists_[static_cast<std::size_t>(2 * r + 1)] = outlier_rows[r];
    const std::int32_t* sizes = per_row(step.ops, 2 * n, [&](std::int32_t i) { return i % 2 == 0 ? keep[i / 2] : outliers[i / 2]; });
    UnionUnits both{.num_rows = n, .lists_per_row = 2, .lists = {.rows = lists_.data(), .count = sizes}};
    std::int32_t* count = per_row(step, [&](std::int32_t r) { return keep[r] + outliers[r]; });
    both.first = prefix_sums(step, [&](std::int32_t r) { return count[r]; });
    both.unit = step.ops.ints(both.first[n]);
    both.count = count;
    step.ops(both);
    return {.first = both.first, .unit = both.unit};
  }

  std::int32_t chunk_, own_budget_;
  std::int32_t outliers_, local_;
  bool keys_fetched_;
  RowProgress progress_{*this};
  PerRow<std::int32_t> chunks_{*this};
  RowMemory<float> means_{*this};
  RowMemory<std::int32_t> outlier_{*this}, other_{*this};
  std::vector<const std::int32_t*> lists_;
};

KVLAB_REGISTER(Selector, ShadowKv, "shadow_kv",
               "chunks whose mean key attracts attention, with outlier chunks and the prompt's end; values come from the host",
               "ShadowKV: Sun et al. 2024, arXiv:2410.21465, algorithms 1 and 2");

}  // namespace

}  // namespace kvlab
