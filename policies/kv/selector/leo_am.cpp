#include <bit>
#include <cmath>
#include <deque>

#include "base/ceil_div.h"
#include "kernels/select/nearest_keys_op.h"
#include "kernels/select/page_summaries_op.h"
#include "policies/kv/selector/selection.h"

namespace kvlab {

namespace {

// The tree is our definition.
class LeoAm final : public Budgeted<TierSelector> {
 public:
  explicit LeoAm(Params& p)
      : leaf_(p.optional<std::int32_t>("leaf_tokens", 8, 1, 4096, "tokens of a leaf")),
        root_(p.optional<std::int32_t>("root_tokens", 512, 1, 1 << 20, "tokens of a root, leaf_tokens times a power of two")),
        budget_frac_(p.optional<double>("budget_frac", 0.1, 1e-5, 1, "share of the row attended to")),
        host_frac_(p.optional<double>("host_frac", 0.5, 0, 1, "share of the row in GPU and CPU memory; the rest is on disk")),
        disk_bits_(p.optional<std::int32_t>("disk_bits", 4, 1, 16, "bits of an element on disk")) {
    if (root_ % leaf_ != 0 || !std::has_single_bit(static_cast<std::uint32_t>(root_ / leaf_)))
      p.fail_at("root_tokens", "'root_tokens' must be 'leaf_tokens' times a power of two");
    levels_ = static_cast<std::int32_t>(std::bit_width(static_cast<std::uint32_t>(root_ / leaf_)));
    for (std::int32_t j = 0; j < levels_; ++j) bounds_.emplace_back(*this);
  }

  [[nodiscard]] Lower lower(std::int32_t) const override { return Lower::kKeysAndValues; }

  void update(LayerStep& step) override {
    traffic_.begin(step, [&](std::int32_t r) { return held_from(step, r) / leaf_; });
    const std::int32_t* const from = progress_.advance(step);
    step.ops(PageSummaries{step.kv, leaf_, leaf_, from, level(step, 0), PageSummaries::Kind::kBounds});
    for (std::int32_t j = 0; j + 1 < levels_; ++j) {
      PageSummaries parents{step.kv, 2, 2, nullptr, level(step, j + 1), PageSummaries::Kind::kNodes, level(step, j)};
      parents.kv.len = per_row(step, [&](std::int32_t r) { return from[r] < step.kv.len[r] ? nodes(step.kv.len[r], j) : 0; });
      parents.from = per_row(step, [&](std::int32_t r) { return ((from[r] / leaf_) >> (j + 1)) * 2; });
      step.ops(parents);
    }
  }

  Selection select(LayerStep& step) override {
    const std::int32_t n = step.kv.num_rows;
    const std::int32_t* tail = per_row(step, [&](std::int32_t r) { return older_tokens(step, r) / leaf_ * leaf_; });
    const std::int32_t* leaves = per_row(step, [&](std::int32_t r) { return tail[r] / leaf_; });
    const std::int32_t* keep =
        per_row(step, [&](std::int32_t r) { return std::min(leaves[r], leaves_of(step.kv.len[r], tokens_of(budget_, step, r))); });
    const std::int64_t* first = prefix_sums(step, [&](std::int32_t r) { return leaves[r]; });
    if (traffic_.reads_all(step, keeps_all(step, first, keep))) return {};
    NearestKeys nearest{.kv = step.kv, .queries = step.in.step.data(), .end = leaves, .keep = keep, .kind = NearestKeys::Kind::kLeaves};
    nearest.begin = per_row(step, [](std::int32_t) { return 0; });
    nearest.index_first = prefix_sums(step, [&](std::int32_t r) { return keep[r]; });
    nearest.index = step.ops.ints(nearest.index_first[n]);
    nearest.levels = levels_, nearest.bounds = level(step, 0);
    step.ops(nearest);
    UnitLists chosen{.first = nearest.index_first, .unit = nearest.index};
    const std::int64_t leaf_numbers = 2LL * leaf_ * step.kv.head_dim;
    traffic_.track(step, chosen, chosen, leaf_numbers * step.kv.kv_bytes, from_disk(leaf_numbers));
    for (std::int32_t r = 0; r < n; ++r) traffic_.hold_from(step, r, leaves[r]);  // the open leaf was read too
    return expand(step, {.lists = chosen, .unit_tokens = leaf_, .tail = tail});
  }

  [[nodiscard]] TierBytes resident(const ModelShape& model, const KvRows& kv, const TierBytes& held) const override {
    std::int64_t on_gpu = 0, in_memory = 0, bounds = 0;
    for (std::int32_t r = 0; r < kv.num_rows; ++r) {
      const std::int32_t hot = std::min(kv.len[r], leaves_of(kv.len[r], budget_.of(kv.len[r])) * leaf_ + leaf_);
      on_gpu += hot;
      in_memory += std::max(hot, static_cast<std::int32_t>(host_frac_ * kv.len[r]));
      for (std::int32_t j = 0; j < levels_; ++j) bounds += nodes(kv.len[r], j);
    }
    if (kv.total() == 0) return held;
    TierBytes bytes = held;
    const std::int64_t cold = held.gpu - held.gpu * in_memory / kv.total();
    bytes.gpu = held.gpu * on_gpu / kv.total() + bounds * 2 * model.head_dim * model.kv_bytes;
    bytes.host += held.gpu - cold - held.gpu * on_gpu / kv.total();
    bytes.disk += cold * disk_bits_ / (8LL * model.kv_bytes);
    return bytes;
  }

 private:
  [[nodiscard]] std::int32_t nodes(std::int32_t len, std::int32_t level) const {
    const std::int32_t tokens = leaf_ << level;
    return ceil_div(len, tokens);
  }
  [[nodiscard]] std::int32_t leaves_of(std::int32_t len, std::int32_t budget) const {
    return std::max(1, (budget > 0 ? budget : static_cast<std::int32_t>(budget_frac_ * len)) / leaf_);
  }
  // The open leaf stays; 0 if the whole row is read.
  std::int32_t held_from(const LayerStep& step, std::int32_t r) override {
    const std::int32_t leaves = step.kv.len[r] / leaf_;
    return leaves_of(step.kv.len[r], tokens_of(budget_, step, r)) >= leaves ? 0 : leaves * leaf_;
  }
  // Average per fetched leaf.
  [[nodiscard]] std::int64_t from_disk(std::int64_t leaf_numbers) const {
    return std::llround((1 - host_frac_) * static_cast<double>(leaf_numbers * disk_bits_) / 8);
  }
  float* const* level(const LayerStep& step, std::int32_t j) {
    return bounds_[static_cast<std::size_t>(j)].rows(
        step, [&](std::int32_t r) { return static_cast<std::int64_t>(nodes(step.kv.len[r], j)) * 2 * step.kv.head_dim; });
  }

  std::int32_t leaf_, root_;
  double budget_frac_, host_frac_;
  std::int32_t disk_bits_, levels_ = 1;
  RowProgress progress_{*this};
  std::deque<RowMemory<float>> bounds_;  // by level
};

KVLAB_REGISTER(Selector, LeoAm, "leo_am", "leaves of a tree of chunks by bounds on their logits, over GPU, host and disk",
               "LeoAM: Sun et al. 2025, arXiv:2506.20187");

}  // namespace

}  // namespace kvlab
