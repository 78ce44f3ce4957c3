#include <algorithm>
#include <cmath>
#include <utility>

#include "base/ceil_div.h"
#include "kernels/select/page_summaries_op.h"
#include "policies/kv/selector/channel_scores_op.h"
#include "policies/kv/selector/paged_selector.h"
#include "policies/kv/selector/selection.h"

namespace kvlab {

namespace {

// From the paper's abstract. Flash holds keys by channel and by token.
class SparF final : public Budgeted<Selector> {
 public:
  explicit SparF(Params& p)
      : channels_frac_(p.optional<double>("channels_frac", 0.125, 0.001, 1, "share of the key channels read of every token")),
        tokens_frac_(p.optional<double>("tokens_frac", 0.125, 1e-5, 1, "share of the tokens read, at least one")),
        page_bytes_(p.optional<std::int32_t>("page_bytes", 4096, 512, 1 << 20, "of a flash page, the least that is read")) {}

  [[nodiscard]] Needs needs() const override { return {.step_queries = true}; }

  void update(LayerStep& step) override {
    constexpr std::int32_t kAll = PageSummaries::kWholeRow;
    step.ops(PageSummaries{step.kv, kAll, kAll, progress_.advance(step), sums(step), PageSummaries::Kind::kValues});
  }

  Selection select(LayerStep& step) override {
    const std::int32_t* tail = per_row(step, [&](std::int32_t r) { return older_tokens(step, r); });
    const std::int32_t* keep =
        per_row(step, [&](std::int32_t r) { return std::min(tail[r], tokens(tail[r], tokens_of(budget_, step, r))); });
    const std::int64_t* older = prefix_sums(step, [&](std::int32_t r) { return tail[r]; });
    selection_ = {};
    if (keeps_all(step, older, keep)) return selection_;
    each_ = step.ops.floats(step.kv.group * step.kv.total());
    const ChannelScores scores{.kv = step.kv,
                               .queries = step.in.step.data(),
                               .channels = per_row(step, [&](std::int32_t) { return channels(step.kv.head_dim); }),
                               .first = step.kv.first,
                               .each = each_,
                               .scores = step.ops.floats(step.kv.total())};
    step.ops(scores);
    const std::int32_t* head = per_row(step, [](std::int32_t) { return 0; });
    mask_ends(step, step.kv.first, head, tail, scores.scores);
    const UnitLists lists = best_units(step, step.kv.first, scores.scores, keep);
    count_pages(step, lists, tail);
    return selection_ = expand(step, {.lists = lists, .tail = tail});
  }

  [[nodiscard]] bool adds_segments() const override { return true; }
  void add_segments(LayerStep& step, std::vector<Segment>& segments) override {
    if (selection_.index_first == nullptr) return;
    const std::int32_t n = step.kv.num_rows;
    const std::int64_t numbers = static_cast<std::int64_t>(n) * step.kv.head_dim;
    SparqRest rest;
    rest.kv = step.kv;
    rest.queries = step.in.step.data();
    rest.lists = lists_of(selection_);
    rest.each = each_;
    rest.sum = sums(step);
    rest.k = step.ops.floats(numbers), rest.v = step.ops.floats(numbers);
    rest.position = step.ops.ints(n);
    rest.log_weight = step.ops.floats(static_cast<std::int64_t>(n) * step.kv.group);
    step.ops(rest);
    Segment mean;
    mean.kv = step.kv;
    mean.kv.page_tokens = 1;
    mean.kv.pool_tokens = n;
    mean.kv.len = per_row(step, [](std::int32_t) { return 1; });
    mean.kv.first = prefix_sums(step, [](std::int32_t) { return 1; });
    mean.kv.page = mean.kv.page_begin = per_row(step, [](std::int32_t r) { return r; });
    mean.kv.k = rest.k, mean.kv.v = rest.v, mean.kv.position = rest.position;
    mean.kv.words = nullptr, mean.kv.num_words = 0, mean.kv.type = ElementType::kF32;
    mean.head_log_weight = rest.log_weight;
    mean.read_bytes = numbers * step.kv.kv_bytes;
    segments.push_back(mean);
  }

  // Flash pages read by the computing device.
  Traffic take_traffic() override { return std::exchange(traffic_, {}); }
  // The device's sums of values count as CPU memory.
  [[nodiscard]] TierBytes resident(const ModelShape& model, const KvRows& kv, const TierBytes& held) const override {
    return {.host = held.host + 4LL * kv.num_rows * model.head_dim, .disk = held.disk + held.gpu + held.gpu / 2};
  }

 private:
  [[nodiscard]] std::int32_t channels(std::int32_t head_dim) const {
    return std::clamp(static_cast<std::int32_t>(channels_frac_ * head_dim), 1, head_dim);
  }
  // This step's token takes one of the budget.
  [[nodiscard]] std::int32_t tokens(std::int32_t older, std::int32_t budget) const {
    return std::max(1, budget > 0 ? budget - 1 : static_cast<std::int32_t>(tokens_frac_ * older));
  }
  float* const* sums(const LayerStep& step) {
    return sums_.rows(step, [&](std::int32_t) { return step.kv.head_dim; });
  }

  void count_pages(LayerStep& step, const UnitLists& lists, const std::int32_t* tail) {
    const std::int32_t n = step.kv.num_rows;
    const std::int64_t token_bytes = 2LL * step.kv.head_dim * step.kv.kv_bytes;
    const auto page_tokens = static_cast<std::int32_t>(std::max<std::int64_t>(1, page_bytes_ / token_bytes));
    std::int32_t* const pages =
        per_row(step, [&](std::int32_t r) { return std::min(static_cast<std::int32_t>(lists.size(r)), ceil_div(tail[r], page_tokens)); });
    step.ops(TrackReuse{.num_rows = n, .asked = lists, .hits = pages, .page_tokens = page_tokens});
    settle_rows(step, "flash_pages", pages);
    const std::int64_t token_pages = ceil_div(token_bytes, page_bytes_);
    for (std::int32_t r = 0; r < n; ++r) {
      const std::int64_t channel_pages = ceil_div(static_cast<std::int64_t>(tail[r]) * step.kv.kv_bytes, page_bytes_);
      const std::int64_t read = pages[r] * token_pages + channels(step.kv.head_dim) * channel_pages;
      traffic_.asked_units += read;
      traffic_.fetched_bytes += read * page_bytes_;
      traffic_.disk_bytes += read * page_bytes_;
      traffic_.in_place_bytes += read * page_bytes_;
    }
  }

  double channels_frac_, tokens_frac_;
  std::int32_t page_bytes_;
  RowProgress progress_{*this};
  RowMemory<float> sums_{*this};
  Traffic traffic_;
  // Valid within a step.
  float* each_ = nullptr;
  Selection selection_;
};

KVLAB_REGISTER(Selector, SparF, "spar_f",
               "few channels of all keys on flash tell which tokens to read there; the mean value replaces the others",
               "SparF of InstInfer: Pan et al. 2024, arXiv:2409.04992, after SparQ: Ribar et al. 2024, arXiv:2312.04985");

// RocketKV's stage 2. Half of the budget pays for the estimate. After an eviction at the prompt's end, kept tokens set the budget.
class HybridSparse final : public PagedSelector {
 public:
  explicit HybridSparse(Params& p) : page_(p.optional<std::int32_t>("page_tokens", 3, 1, 4096, "tokens of a page")) {
    const auto budget = p.optional<std::int32_t>("budget_tokens", 0, 0, 1 << 24,
                                                 "tokens' worth read per KV head and step; 0: by the share of the prompt that was kept");
    set_sizes({.budget = {budget}, .stride_tokens = page_});
  }

  void step_key(const SeqStep& seq, StepKey& key) const override { key.add(seq.prompt_tokens, StepKey::kForEver), key.add(seq.end()); }

 protected:
  [[nodiscard]] Plan plan(const LayerStep& step, std::int32_t r) const override {
    const std::int32_t end = older_tokens(step, r) / page_ * page_, chosen = chosen_tokens(step, r, end);
    return chosen >= end ? Plan{} : Plan{end, chosen};
  }
  UnitLists choose(LayerStep& step, const RowPlans& rows) override {
    const ChannelScores pages{.kv = step.kv,
                              .kind = ChannelScores::Kind::kBounds,
                              .queries = step.in.step.data(),
                              .channels = per_row(step, [&](std::int32_t r) { return channels(step, r); }),
                              .bounds = summaries_.rows(step),
                              .unit_tokens = page_,
                              .first = rows.first,
                              .scores = step.ops.floats(rows.first[step.kv.num_rows])};
    step.ops(pages);
    return best_units(step, rows.first, pages.scores, rows.keep);
  }

 private:
  [[nodiscard]] static std::int32_t kept_tokens(const LayerStep& step, std::int32_t r) {
    const SeqStep& seq = seq_of(step, r);
    return std::clamp(step.kv.len[r] - (seq.end() - seq.prompt_tokens), 1, std::max(1, seq.prompt_tokens));
  }
  // The paper splits compression c into c^r by eviction and the rest by selection, r = min(0.2 + 0.06 log2 c, 0.8). Solves for c given n /
  // c^r kept tokens; the budget is n / c.
  [[nodiscard]] std::int32_t budget(const LayerStep& step, std::int32_t r) const {
    if (is_given(budget_)) return tokens(step, r);
    const double n = std::max(1, seq_of(step, r).prompt_tokens), evicted = std::log2(n / kept_tokens(step, r));
    const double bits = (std::sqrt(0.04 + 0.24 * evicted) - 0.2) / 0.12;  // log2 c: r log2 c = evicted
    return std::max(2, static_cast<std::int32_t>(std::lround(n / std::exp2(bits <= 10 ? bits : evicted / 0.8))));
  }
  // Before `end`; later ones are always read and count.
  [[nodiscard]] std::int32_t chosen_tokens(const LayerStep& step, std::int32_t r, std::int32_t end) const {
    const std::int32_t all = budget(step, r);
    if (all >= (is_given(budget_) ? step.kv.len[r] : kept_tokens(step, r))) return end;
    return std::min(end, std::max(1, all / 2 - (step.kv.len[r] - end)));
  }
  // The estimate reads half as many bytes as the budget's K and V.
  [[nodiscard]] std::int32_t channels(const LayerStep& step, std::int32_t r) const {
    const double ratio = static_cast<double>(kept_tokens(step, r)) / budget(step, r);
    return std::clamp(static_cast<std::int32_t>(step.kv.head_dim * page_ / ratio), 1, step.kv.head_dim);
  }

  std::int32_t page_;
};

KVLAB_REGISTER(Selector, HybridSparse, "hybrid_sparse", "tokens by one value per page and channel, in the channels of largest query",
               "RocketKV: Behnam et al. 2025, arXiv:2502.14051");

}  // namespace

}  // namespace kvlab
