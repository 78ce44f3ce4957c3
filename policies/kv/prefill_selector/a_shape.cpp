#include "kernels/select/mark_blocks/mark_blocks.h"
#include "policies/kv/prefill_selector/block_selector.h"

namespace kvlab {

namespace {

// In whole blocks. After StreamingLLM.
class AShape final : public BlockSelector {
 public:
  explicit AShape(Params& p)
      : BlockSelector(p, 64),
        sinks_(p.optional<std::int32_t>("sink_tokens", 100, 0, 1 << 26, "first tokens of the prompt")),
        recent_(p.optional<std::int32_t>("recent_tokens", 800, 1, 1 << 26, "newest tokens before a query")) {}

 protected:
  void choose(const PromptChunk& chunk, const PromptBlocks& prompt, const Marks& marks) override {
    chunk.ops(MarkBlocks{prompt, MarkBlocks::Kind::kLocal, marks.blocks, nullptr, for_heads(chunk.ops, prompt.q_heads, sinks_),
                         for_heads(chunk.ops, prompt.q_heads, recent_)});
  }
  [[nodiscard]] std::int32_t expected_blocks(const PromptBlocks& prompt, std::int64_t, std::int32_t before) const override {
    const std::int32_t own = before - 1, recent = std::max(0, own - ceil_div(recent_, prompt.block));
    return own + 1 - std::max(0, recent - ceil_div(sinks_, prompt.block));
  }
  [[nodiscard]] bool depends_on_data() const override { return false; }

 private:
  std::int32_t sinks_, recent_;
};

KVLAB_REGISTER(PrefillSelector, AShape, "a_shape", "first tokens and the newest before each query",
               "MInference: Jiang et al. 2024, arXiv:2407.02490");

}  // namespace

}  // namespace kvlab
