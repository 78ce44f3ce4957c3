#include "kernels/select/mark_blocks/mark_blocks.h"
#include "policies/kv/prefill_selector/block_selector.h"

namespace kvlab {

namespace {

// Algorithm 2.
class VerticalSlashSelector final : public BlockSelector {
 public:
  explicit VerticalSlashSelector(Params& p)
      : BlockSelector(p, 64),
        columns_(p.optional<std::int32_t>("columns", 1000, 0, 1 << 26, "columns (tokens) that all later queries attend to")),
        diagonals_(p.optional<std::int32_t>("diagonals", 6096, 1, 1 << 26, "distances at which queries attend")),
        window_(p.optional<std::int32_t>("window_queries", 64, 1, 1 << 16, "last queries of the chunk that choose")),
        first_columns_(p.optional<std::int32_t>("first_columns", 30, 0, 1 << 26, "of the columns, the prompt's first tokens, always")),
        near_diagonals_(p.optional<std::int32_t>("near_diagonals", 100, 0, 1 << 26, "of the diagonals, the nearest, always")),
        cost_blocks_(p.optional<std::int32_t>("cost_blocks", 0, 0, 1 << 26,
                                              "key blocks of a query block that costs assume, where no tensors are read; 0: as if the "
                                              "diagonals were adjacent, the fewest")) {}

 protected:
  void choose(const PromptChunk& chunk, const PromptBlocks& prompt, const Marks& marks) override {
    MarkBlocks op{prompt, MarkBlocks::Kind::kVerticalSlash, marks.blocks, marks.columns};
    op.first = for_heads(chunk.ops, prompt.q_heads, columns_), op.second = for_heads(chunk.ops, prompt.q_heads, diagonals_);
    op.window_queries = window_, op.first_columns = first_columns_, op.near_diagonals = near_diagonals_;
    chunk.ops(op);
  }
  [[nodiscard]] bool has_columns() const override { return true; }
  [[nodiscard]] std::int32_t expected_blocks(const PromptBlocks& prompt, std::int64_t, std::int32_t) const override {
    return cost_blocks_ > 0 ? cost_blocks_ : ceil_div(diagonals_, prompt.block) + 1;
  }
  [[nodiscard]] std::int32_t expected_columns(const PromptBlocks&, std::int64_t, std::int32_t) const override { return columns_; }

 private:
  std::int32_t columns_, diagonals_, window_, first_columns_, near_diagonals_, cost_blocks_;
};

KVLAB_REGISTER(PrefillSelector, VerticalSlashSelector, "vertical_slash",
               "columns and diagonals that the chunk's last queries attend to most", "MInference: Jiang et al. 2024, arXiv:2407.02490");

}  // namespace

}  // namespace kvlab
