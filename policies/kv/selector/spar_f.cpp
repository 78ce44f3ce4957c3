#include <utility>

#include "base/ceil_div.h"
#include "kernels/select/page_summaries_op.h"
#include "policies/kv/selector/budget_share.h"
#include "policies/kv/selector/channel_scores_op.h"
#include "policies/kv/selector/sparq_rest_op.h"
#include "policies/kv/selector/tiers.h"

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

}  // namespace

}  // namespace kvlab
