#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernels/select/list_marked_op.h"
#include "kernels/select/mark_blocks/mark_blocks.h"
#include "policies/kv/prefill_selector/head_patterns.h"
#include "policies/kv/prefill_selector/prefill_selector.h"
#include "policies/kv/step_arrays.h"

namespace kvlab {

namespace {

// Lists key blocks, and optionally columns, per query head and query block (SparsePrefill).
class BlockSelector : public PrefillSelector {
 public:
  std::int64_t attend(const PromptChunk& chunk) final {
    Ops& ops = chunk.ops;
    const PromptBlocks prompt = chunk.blocks(block_);
    const auto zeros = [&](std::int64_t n) {
      float* const words = ops.floats(n);
      ops.zero(words, n);
      return reinterpret_cast<std::int32_t*>(words);
    };
    Marks marks{zeros(prompt.num_lists() * prompt.mark_words()), nullptr};
    if (has_columns()) marks.columns = zeros(prompt.q_heads * prompt.column_words());
    choose(chunk, prompt, marks);
    const Counts counts = count(chunk, prompt, marks);
    SparseKeys keys{block_, prefix_sums(ops, prompt.num_lists(), [&](std::int32_t i) { return counts.blocks[i]; }), nullptr, nullptr,
                    nullptr};
    if (has_columns()) keys.column_first = prefix_sums(ops, prompt.num_lists(), [&](std::int32_t i) { return counts.columns[i]; });
    std::int32_t* const blocks = ops.ints(keys.block_first[prompt.num_lists()]);
    std::int32_t* const columns = has_columns() ? ops.ints(keys.column_first[prompt.num_lists()]) : nullptr;
    ops(ListMarked{prompt, marks.blocks, marks.columns, has_columns(), nullptr, nullptr, keys.block_first, keys.column_first, blocks,
                   columns});
    keys.blocks = blocks, keys.columns = columns;
    SparsePrefill attention;
    attention.q = chunk.q, attention.k = chunk.k, attention.v = chunk.v, attention.out = chunk.out, attention.log_sum = chunk.log_sum;
    attention.new_tokens = prompt.new_tokens, attention.kv_before = prompt.kv_before;
    attention.q_heads = prompt.q_heads, attention.kv_heads = prompt.kv_heads, attention.head_dim = prompt.head_dim;
    attention.scale = 1.0F / std::sqrt(static_cast<float>(prompt.head_dim));
    attention.window = chunk.window;
    attention.keys = keys;
    attention.activation_bytes = prompt.activation_bytes, attention.kv_bytes = prompt.kv_bytes;
    ops(attention);
    return call(attention).flops / (4 * prompt.head_dim);
  }

  [[nodiscard]] bool is_dense(std::int32_t layer) const override { return layer < dense_layers_; }
  [[nodiscard]] std::int32_t layer_kind(std::int32_t layer) const override { return layer < dense_layers_ ? 0 : 1; }

 protected:
  BlockSelector(Params& p, std::int32_t block_tokens)
      : block_(p.optional<std::int32_t>("block_tokens", block_tokens, 1, 1 << 16, "tokens of a block of queries and of keys")),
        dense_layers_(p.optional<std::int32_t>("dense_layers", 0, 0, 1 << 16, "first layers in which prompts attend to every token")) {}

  // Bits that choose() adds, as in kernels/select. columns null: no has_columns().
  struct Marks {
    std::int32_t* blocks = nullptr;
    std::int32_t* columns = nullptr;
  };
  virtual void choose(const PromptChunk& chunk, const PromptBlocks& prompt, const Marks& marks) = 0;
  [[nodiscard]] virtual bool has_columns() const { return false; }
  // For costs: blocks of a list with its own, and columns. before: blocks up to the own one.
  [[nodiscard]] virtual std::int32_t expected_blocks(const PromptBlocks& prompt, std::int64_t list, std::int32_t before) const = 0;
  [[nodiscard]] virtual std::int32_t expected_columns(const PromptBlocks&, std::int64_t /*list*/, std::int32_t /*before*/) const {
    return 0;
  }
  // False: list lengths follow from prompt lengths.
  [[nodiscard]] virtual bool depends_on_data() const { return true; }
  [[nodiscard]] std::int32_t block_tokens() const { return block_; }

 private:
  struct Counts {
    std::int32_t *blocks, *columns;  // [num_lists]
  };

  // Counted on data; expected or recorded on shapes.
  Counts count(const PromptChunk& chunk, const PromptBlocks& prompt, const Marks& marks) const {
    const std::int64_t lists = prompt.num_lists();
    Counts counts{chunk.ops.host_ints(lists), chunk.ops.host_ints(has_columns() ? lists : 0)};
    for (std::int64_t i = 0; i < lists; ++i) {
      const auto before = static_cast<std::int32_t>(prompt.first_block() + i % prompt.num_query_blocks()) + 1;
      counts.blocks[i] = std::clamp(expected_blocks(prompt, i, before), 1, before);
      if (has_columns()) counts.columns[i] = std::clamp(expected_columns(prompt, i, before), 0, (before - counts.blocks[i]) * prompt.block);
    }
    if (!depends_on_data()) return counts;
    ListMarked op{prompt, marks.blocks, marks.columns, has_columns()};
    op.num_blocks = counts.blocks, op.num_columns = has_columns() ? counts.columns : nullptr;
    chunk.ops(op);
    chunk.ops.settle("prefill_blocks", chunk.layer, {counts.blocks, static_cast<std::size_t>(lists)});
    if (has_columns()) chunk.ops.settle("prefill_columns", chunk.layer, {counts.columns, static_cast<std::size_t>(lists)});
    return counts;
  }

  std::int32_t block_, dense_layers_;
};

// `count` per query head, in CPU memory.
std::int32_t* for_heads(Ops& ops, std::int64_t q_heads, std::int32_t count) {
  return per_row(ops, q_heads, [&](std::int32_t) { return count; });
}

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

class MInference final : public BlockSelector {
 public:
  explicit MInference(Params& p)
      : BlockSelector(p, 64),
        others_{HeadPattern::Kind::kVerticalSlash,
                p.optional<std::int32_t>("columns", 1000, 0, 1 << 26, "of heads without a pattern: columns"),
                p.optional<std::int32_t>("diagonals", 6096, 1, 1 << 26, "of heads without a pattern: diagonals")},
        cost_spread_(
            p.optional<double>("cost_spread", 1, 1, 128,
                               "key blocks that costs assume for 64 diagonals, where no tensors are read; 1: adjacent, the fewest")) {
    const std::string file = p.text("file", "", "patterns per layer and query head, as the authors' JSON files have them");
    const std::string heads =
        p.text("heads", "", "patterns as LAYER.HEAD=PATTERN:NUMBER:NUMBER, separated by spaces; go before the file's");
    if (p.is_describing()) return;
    if (!heads.empty()) patterns_ = p.reading("heads", [&] { return parse_head_patterns(heads); });
    if (!file.empty()) set_patterns(p.reading("file", [&] { return read_head_patterns(p.resolve_file(file)); }));
  }

  [[nodiscard]] bool takes_patterns() const override { return true; }
  void set_patterns(const PatternTable& table) override {
    patterns_.insert(table.patterns.begin(), table.patterns.end());
    tables_.push_back(table);
  }

  [[nodiscard]] std::int32_t layer_kind(std::int32_t layer) const override {
    return patterns_.empty() || is_dense(layer) ? BlockSelector::layer_kind(layer) : layer + 2;
  }
  [[nodiscard]] std::string refuses(const ModelShape& model) const override {
    for (const PatternTable& table : tables_)
      if (std::string why = table.refuses(model.num_layers, model.q_heads); !why.empty()) return why;
    for (const auto& [place, pattern] : patterns_)
      if (place.first >= model.num_layers || place.second >= model.q_heads)
        return "prefill selector 'minference' has a pattern for layer " + std::to_string(place.first) + ", query head " +
               std::to_string(place.second) + ", and the model has " + std::to_string(model.num_layers) + " layers of " +
               std::to_string(model.q_heads) + " query heads";
    return "";
  }

 protected:
  void choose(const PromptChunk& chunk, const PromptBlocks& prompt, const Marks& marks) override {
    layer_ = chunk.layer;
    using Kind = HeadPattern::Kind;
    for (const auto& [kind, op] : {std::pair{Kind::kVerticalSlash, MarkBlocks::Kind::kVerticalSlash},
                                   {Kind::kAShape, MarkBlocks::Kind::kLocal},
                                   {Kind::kBlocks, MarkBlocks::Kind::kPooled}}) {
      std::int32_t *const first = for_heads(chunk.ops, prompt.q_heads, 0), *const second = for_heads(chunk.ops, prompt.q_heads, 0);
      bool any = false;
      for (std::int32_t h = 0; h < prompt.q_heads; ++h)
        if (const HeadPattern& p = pattern(h); p.kind == kind)
          any = true, first[h] = p.first, second[h] = kind == Kind::kBlocks ? 0 : p.second;
      if (any) chunk.ops(MarkBlocks{prompt, op, marks.blocks, marks.columns, first, second});
    }
  }
  [[nodiscard]] bool has_columns() const override { return true; }
  [[nodiscard]] std::int32_t expected_blocks(const PromptBlocks& prompt, std::int64_t list, std::int32_t) const override {
    const HeadPattern& p = pattern(static_cast<std::int32_t>(list / prompt.num_query_blocks()));
    if (p.kind == HeadPattern::Kind::kBlocks) return p.first;
    if (p.kind == HeadPattern::Kind::kAShape) return ceil_div(p.first, prompt.block) + ceil_div(p.second, prompt.block) + 1;
    return static_cast<std::int32_t>(cost_spread_ * ceil_div(p.second, prompt.block)) + 1;
  }
  [[nodiscard]] std::int32_t expected_columns(const PromptBlocks& prompt, std::int64_t list, std::int32_t) const override {
    const HeadPattern& p = pattern(static_cast<std::int32_t>(list / prompt.num_query_blocks()));
    return p.kind == HeadPattern::Kind::kVerticalSlash ? p.first : 0;
  }

 private:
  [[nodiscard]] const HeadPattern& pattern(std::int32_t head) const {
    const auto at = patterns_.find({layer_, head});
    return at == patterns_.end() ? others_ : at->second;
  }

  HeadPattern others_;
  double cost_spread_;
  HeadPatterns patterns_;
  std::vector<PatternTable> tables_;
  std::int32_t layer_ = 0;
};

KVLAB_REGISTER(PrefillSelector, MInference, "minference", "each query head by its own pattern, found offline",
               "MInference: Jiang et al. 2024, arXiv:2407.02490");

}  // namespace

}  // namespace kvlab
