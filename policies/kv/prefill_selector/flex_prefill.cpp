#include "kernels/select/mark_blocks/mark_blocks.h"
#include "policies/kv/prefill_selector/block_selector.h"

namespace kvlab {

namespace {

class FlexPrefill final : public BlockSelector {
 public:
  explicit FlexPrefill(Params& p)
      : BlockSelector(p, 128),
        gamma_(p.optional<double>("gamma", 0.9, 0, 1, "share of the attention that columns, diagonals or blocks hold")),
        tau_(p.optional<double>("tau", 0.1, 0, 1, "distance of estimate and attention below which a head is query-aware; 0: none is")),
        min_tokens_(p.optional<std::int32_t>("min_budget_tokens", 1024, 1, 1 << 26, "of columns as of diagonals, at least")),
        max_tokens_(p.optional<std::int32_t>("max_budget_tokens", 1 << 26, 1, 1 << 26, "of columns as of diagonals, at most")),
        expected_(p, 0.3) {}

 protected:
  void choose(const PromptChunk& chunk, const PromptBlocks& prompt, const Marks& marks) override {
    MarkBlocks op{prompt, MarkBlocks::Kind::kFlex, marks.blocks};
    op.share = gamma_, op.tau = tau_;
    op.min_blocks = ceil_div(min_tokens_, prompt.block), op.max_blocks = ceil_div(max_tokens_, prompt.block);
    chunk.ops(op);
  }
  [[nodiscard]] std::int32_t expected_blocks(const PromptBlocks&, std::int64_t, std::int32_t before) const override {
    return expected_.of(before);
  }

 private:
  double gamma_, tau_;
  std::int32_t min_tokens_, max_tokens_;
  ExpectedShare expected_;
};

KVLAB_REGISTER(PrefillSelector, FlexPrefill, "flex_prefill", "per head a pattern and as many blocks as hold a share of the attention",
               "FlexPrefill: Lai et al. 2025, arXiv:2502.20766");

}  // namespace

}  // namespace kvlab
