#include <algorithm>

#include "base/ceil_div.h"
#include "kernels/select/block_max/block_max.h"
#include "kernels/select/page_means/page_means.h"
#include "policies/kv/selector/budget_share.h"

namespace kvlab {

namespace {

// Blocks judged by attention over mean keys of short overlapping windows ("semantic kernels"), summed over the group: one choice
// per KV head. InfLLM v2, MiniCPM Team 2025, arXiv:2506.07900; here without the training.
class InfLlm2 final : public QuerySelector<UnitTraffic>, public TakesShare {
 public:
  explicit InfLlm2(Params& p)
      : kernel_(p.optional<std::int32_t>("kernel_tokens", 32, 1, 1 << 16, "tokens that share a mean key")),
        stride_(p.optional<std::int32_t>("stride_tokens", 16, 1, 1 << 16, "tokens from one mean key to the next")),
        block_(p.optional<std::int32_t>("block_tokens", 64, 1, 1 << 16, "tokens of a block")),
        initial_(p.optional<std::int32_t>("initial_blocks", 1, 0, 1 << 16, "first blocks attended to")),
        window_(p.optional<std::int32_t>("window_tokens", 2048, 1, 1 << 24, "newest tokens attended to, rounded up to blocks")),
        top_(p.optional<std::int32_t>("top_blocks", 16, 1, 1 << 20, "blocks attended to beside the window, initial ones included")),
        dense_tokens_(p.optional<std::int32_t>("dense_tokens", 8192, 0, 1 << 30, "rows shorter than this are attended to as a whole")) {
    if (block_ % stride_ != 0) p.fail_at("stride_tokens", "'block_tokens' must be a multiple of 'stride_tokens'");
    if (kernel_ % stride_ != 0) p.fail_at("stride_tokens", "'kernel_tokens' must be a multiple of 'stride_tokens'");
    if (initial_ > top_) p.fail_at("initial_blocks", "'initial_blocks' cannot exceed 'top_blocks'");
  }

  // The window takes at most half of the budget, and rows are no longer dense than the budget.
  bool set_budget(std::int32_t tokens) override {
    budget_ = {tokens};
    return true;
  }
  void set_share(const Budget& share) override { budget_ = share; }
  void forget(std::int32_t index) override {
    progress_.forget(index);
    means_.forget(index);
    QuerySelector::forget(index);
  }

  void update(LayerStep& step) override {
    PageMeans means;
    means.kv = step.kv;
    means.span_tokens = kernel_;
    means.stride_tokens = stride_;
    means.from = progress_.advance(step);
    means.means = rows(step);
    step.ops(means);
  }

  Selection select(LayerStep& step) override {
    const std::int32_t n = step.kv.num_rows;
    const std::int32_t* tail = per_row(step.ops, n, [&](std::int32_t r) {
      const Sizes size = sizes(step, r);
      const std::int32_t blocks = std::min(step.kv.len[r] - size.window, older_tokens(step, r)) / block_;
      return step.kv.len[r] < size.dense_tokens || blocks <= size.top ? 0 : blocks * block_;
    });
    if (all_whole(n, tail)) return {};
    const std::int32_t* head = per_row(step.ops, n, [&](std::int32_t r) { return tail[r] == 0 ? 0 : sizes(step, r).initial; });
    const std::int32_t* keep =
        per_row(step.ops, n, [&](std::int32_t r) { return tail[r] == 0 ? 0 : sizes(step, r).top - sizes(step, r).initial; });
    BlockMax blocks = judge_blocks(step, tail);
    step.ops(blocks);
    const std::int32_t* end = per_row(step.ops, n, [&](std::int32_t r) { return tail[r] / block_; });
    mask_ends(step.ops, n, blocks.first, head, end, blocks.out);
    ExpandUnits tokens;
    tokens.num_rows = n;
    tokens.lists = best_units(step.ops, n, 1, blocks.first, blocks.out, keep);
    traffic_.track(step, tokens.lists);
    tokens.unit_tokens = block_;
    tokens.head = per_row(step.ops, n, [&](std::int32_t r) { return head[r] * block_; });
    tokens.tail = tail;
    tokens.len = step.kv.len;
    return expand(step.ops, tokens);
  }

  [[nodiscard]] TierBytes resident(const ModelShape& model, const KvRows& kv, const TierBytes& held) const override {
    TierBytes bytes = held;
    for (std::int32_t r = 0; r < kv.num_rows; ++r)
      bytes.gpu += static_cast<std::int64_t>(windows(kv.len[r])) * model.head_dim * model.kv_bytes;
    return bytes;
  }

 private:
  struct Sizes {
    std::int32_t window, top, initial, dense_tokens;
  };
  [[nodiscard]] Sizes sizes(const LayerStep& step, std::int32_t r) const {
    if (!is_given(budget_)) return {window_, top_, initial_, dense_tokens_};
    const std::int32_t tokens = tokens_of(budget_, step, r), window = std::clamp(tokens / 2, 1, window_);
    const std::int32_t top = std::max(1, (tokens - window) / block_);
    return {window, top, std::min(initial_, top), std::min(dense_tokens_, tokens + 1)};
  }

  [[nodiscard]] std::int32_t windows(std::int32_t len) const { return ceil_div(len, stride_); }
  float* const* rows(const LayerStep& step) {
    return means_.rows(step, [&](std::int32_t r) { return static_cast<std::int64_t>(windows(step.kv.len[r])) * step.kv.head_dim; });
  }

  // Scores of all windows, and from them those of the blocks before the tail.
  BlockMax judge_blocks(LayerStep& step, const std::int32_t* tail) {
    const std::int32_t n = step.kv.num_rows;
    const std::int64_t* first = prefix_sums(step.ops, n, [&](std::int32_t r) { return tail[r] == 0 ? 0 : windows(step.kv.len[r]); });
    PageScores scores = page_scores(step, rows(step), first);
    scores.kind = PageScores::Kind::kDot;
    scores.heads = PageScores::Heads::kSum;
    scores.softmax = true;
    scores.scores = step.ops.floats(first[n]);
    step.ops(scores);
    BlockMax blocks;
    blocks.num_rows = n;
    blocks.stride = block_ / stride_;
    blocks.before = kernel_ / stride_ - 1;
    blocks.span = blocks.stride + blocks.before;
    blocks.in_first = first;
    blocks.in = scores.scores;
    blocks.first = prefix_sums(step.ops, n, [&](std::int32_t r) { return tail[r] / block_; });
    blocks.out = step.ops.floats(blocks.first[n]);
    return blocks;
  }

  std::int32_t kernel_, stride_, block_, initial_, window_, top_, dense_tokens_;
  Budget budget_;
  RowProgress progress_;
  RowMemory<float> means_;
};

KVLAB_REGISTER(Selector, InfLlm2, "infllm2", "blocks judged by attention over mean keys of overlapping windows",
               "InfLLM v2: MiniCPM Team 2025, arXiv:2506.07900");

}  // namespace

}  // namespace kvlab
