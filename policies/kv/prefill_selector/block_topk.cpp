#include <cmath>

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

// Share of causal key blocks, for costs.
double read_cost_share(Params& p) {
  return p.optional<double>("cost_share", 0.3, 0, 1, "share of causal key blocks that costs assume, where no tensors are read");
}

std::int32_t blocks_of(double share, std::int32_t before) { return static_cast<std::int32_t>(std::ceil(share * before)); }

class FlexPrefill final : public BlockSelector {
 public:
  explicit FlexPrefill(Params& p)
      : BlockSelector(p, 128),
        gamma_(p.optional<double>("gamma", 0.9, 0, 1, "share of the attention that columns, diagonals or blocks hold")),
        tau_(p.optional<double>("tau", 0.1, 0, 1, "distance of estimate and attention below which a head is query-aware; 0: none is")),
        min_tokens_(p.optional<std::int32_t>("min_budget_tokens", 1024, 1, 1 << 26, "of columns as of diagonals, at least")),
        max_tokens_(p.optional<std::int32_t>("max_budget_tokens", 1 << 26, 1, 1 << 26, "of columns as of diagonals, at most")),
        cost_share_(read_cost_share(p)) {}

 protected:
  void choose(const PromptChunk& chunk, const PromptBlocks& prompt, const Marks& marks) override {
    MarkBlocks op{prompt, MarkBlocks::Kind::kFlex, marks.blocks};
    op.share = gamma_, op.tau = tau_;
    op.min_blocks = ceil_div(min_tokens_, prompt.block), op.max_blocks = ceil_div(max_tokens_, prompt.block);
    chunk.ops(op);
  }
  [[nodiscard]] std::int32_t expected_blocks(const PromptBlocks&, std::int64_t, std::int32_t before) const override {
    return blocks_of(cost_share_, before);
  }

 private:
  double gamma_, tau_;
  std::int32_t min_tokens_, max_tokens_;
  double cost_share_;
};

KVLAB_REGISTER(PrefillSelector, FlexPrefill, "flex_prefill", "per head a pattern and as many blocks as hold a share of the attention",
               "FlexPrefill: Lai et al. 2025, arXiv:2502.20766");

class XAttention final : public BlockSelector {
 public:
  explicit XAttention(Params& p)
      : BlockSelector(p, 128),
        stride_(p.optional<std::int32_t>("stride_tokens", 16, 1, 1 << 16, "distance of the antidiagonals; divides block_tokens")),
        threshold_(p.optional<double>("threshold", 0.9, 0, 1, "share of a query block's estimated attention that its blocks hold")),
        cost_share_(read_cost_share(p)) {
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
    return blocks_of(cost_share_, before);
  }

 private:
  std::int32_t stride_;
  double threshold_;
  double cost_share_;
};

KVLAB_REGISTER(PrefillSelector, XAttention, "xattention", "key blocks by sums along antidiagonals, up to a share of the attention",
               "XAttention: Xu et al. 2025, arXiv:2503.16428");

}  // namespace

}  // namespace kvlab
