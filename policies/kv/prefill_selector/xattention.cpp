#include "kernels/select/mark_blocks/mark_blocks.h"
#include "policies/kv/prefill_selector/block_selector.h"

namespace kvlab {

namespace {

class XAttention final : public BlockSelector {
 public:
  explicit XAttention(Params& p)
      : BlockSelector(p, 128),
        stride_(p.optional<std::int32_t>("stride_tokens", 16, 1, 1 << 16, "distance of the antidiagonals; divides block_tokens")),
        threshold_(p.optional<double>("threshold", 0.9, 0, 1, "share of a query block's estimated attention that its blocks hold")),
        expected_(p, 0.3) {
    if (!p.is_describing() && block_tokens() % stride_ != 0)
      p.fail_at("stride_tokens", "'stride_tokens' must divide 'block_tokens', " + std::to_string(block_tokens()));
  }

 protected:
  void choose(const PromptChunk& chunk, const PromptBlocks& prompt, const Marks& marks) override {
    MarkBlocks op{prompt, MarkBlocks::Kind::kAntidiagonal, marks.blocks};
    op.share = threshold_, op.stride = stride_;
    chunk.ops(op);
  }
  [[nodiscard]] std::int32_t expected_blocks(const PromptBlocks&, std::int64_t, std::int32_t before) const override {
    return expected_.of(before);
  }

 private:
  std::int32_t stride_;
  double threshold_;
  ExpectedShare expected_;
};

KVLAB_REGISTER(PrefillSelector, XAttention, "xattention", "key blocks by sums along antidiagonals, up to a share of the attention",
               "XAttention: Xu et al. 2025, arXiv:2503.16428");

}  // namespace

}  // namespace kvlab
