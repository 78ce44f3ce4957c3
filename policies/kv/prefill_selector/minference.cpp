#include "kernels/select/mark_blocks/mark_blocks.h"
#include "policies/kv/prefill_selector/block_selector.h"
#include "policies/kv/prefill_selector/head_patterns.h"

namespace kvlab {

namespace {

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
