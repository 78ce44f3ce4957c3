#include "kernels/select/mark_blocks/mark_blocks.h"
#include "policies/kv/prefill_selector/block_selector.h"

namespace kvlab {

namespace {

// Algorithm 3.
class BlockTopK final : public BlockSelector {
 public:
  explicit BlockTopK(Params& p)
      : BlockSelector(p, 64),
        top_(p.optional<std::int32_t>("top_blocks", 100, 1, 1 << 26, "key blocks of a query block, its own included")) {}

 protected:
  void choose(const PromptChunk& chunk, const PromptBlocks& prompt, const Marks& marks) override {
    chunk.ops(MarkBlocks{prompt, MarkBlocks::Kind::kPooled, marks.blocks, nullptr, for_heads(chunk.ops, prompt.q_heads, top_)});
  }
  [[nodiscard]] std::int32_t expected_blocks(const PromptBlocks&, std::int64_t, std::int32_t) const override { return top_; }
  [[nodiscard]] bool depends_on_data() const override { return false; }

 private:
  std::int32_t top_;
};

KVLAB_REGISTER(PrefillSelector, BlockTopK, "block_topk", "key blocks by the products of block means",
               "MInference: Jiang et al. 2024, arXiv:2407.02490");

}  // namespace

}  // namespace kvlab
