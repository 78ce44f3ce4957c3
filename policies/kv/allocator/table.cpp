#include "policies/kv/allocator/counts.h"

namespace kvlab {

namespace {

// Layers and heads without an entry get the budget.
class Table final : public Allocator {
  enum class Unit : std::uint8_t { kTokens, kBudget, kPrompt };

 public:
  explicit Table(Params& p)
      : unit_(
            p.choice("unit", {{"tokens", Unit::kTokens}, {"budget_frac", Unit::kBudget}, {"prompt_frac", Unit::kPrompt}}, Unit::kTokens,
                     "what the values are: tokens, multiples of the budget, or shares of the sequence, of which at least one token stays")),
        remainders_(
            p.choice("rounding", {{"down", false}, {"largest_remainder", true}}, false,
                     "of shares of the sequence: each is rounded down, or a layer's heads together keep its rounded sum, as in LU-KV")),
        table_(read_table(p, "values", true, 0, 1 << 26, "LAYER=VALUE or LAYER.HEAD=VALUE, separated by spaces")) {
    if (remainders_ && unit_ != Unit::kPrompt) p.fail_at("rounding", "'rounding: largest_remainder' goes with 'unit: prompt_frac'");
    if (table_.empty()) p.fail("allocator 'table' needs 'values', such as \"0=512 3.1=64\"");
  }

  [[nodiscard]] std::string refuses(const ModelShape& model) const override { return refuses_table(table_, "values", model); }

  [[nodiscard]] bool splits_heads() const override {
    return std::any_of(table_.begin(), table_.end(), [](const TableEntry& e) { return e.head >= 0; });
  }

  [[nodiscard]] std::int32_t expected(const ModelShape& model, std::int32_t layer, std::int32_t head, std::int32_t target,
                                      std::int32_t n) const override {
    return std::min(n, tokens(model, layer, head, target, n));
  }

 private:
  [[nodiscard]] std::int32_t tokens(const ModelShape& model, std::int32_t layer, std::int32_t head, std::int32_t target,
                                    std::int32_t n) const {
    const TableEntry* entry = find_entry(table_, layer, head);
    if (entry == nullptr) return target;
    if (remainders_) return by_remainder(model, layer, head, target, n);
    if (unit_ == Unit::kPrompt) return std::max(1, static_cast<std::int32_t>(std::min<double>(entry->value * n, n)));
    return static_cast<std::int32_t>(std::min<double>(unit_ == Unit::kBudget ? entry->value * target : entry->value, 1 << 30));
  }

  [[nodiscard]] std::int32_t by_remainder(const ModelShape& model, std::int32_t layer, std::int32_t head, std::int32_t target,
                                          std::int32_t n) const {
    std::vector<float> shares;
    for (std::int32_t h = 0; h < model.kv_heads; ++h) {
      const TableEntry* entry = find_entry(table_, layer, h);
      shares.push_back(entry == nullptr ? static_cast<float>(target) / static_cast<float>(n) : static_cast<float>(entry->value));
    }
    return tokens_by_remainder(shares, head, n);
  }

  Unit unit_;
  bool remainders_;
  std::vector<TableEntry> table_;
};

KVLAB_REGISTER(Allocator, Table, "table", "tokens per layer or head from a list", "our definition: budgets found offline");

}  // namespace

}  // namespace kvlab
