#include <algorithm>

#include "kernels/score/pool1d_op.h"
#include "policies/kv/selector/paged_selector.h"

namespace kvlab {

namespace {

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

}  // namespace

}  // namespace kvlab
