#include "policies/kv/allocator/counts.h"

namespace kvlab {

namespace {

// Tokens per layer or per head as the user lists them; what is not listed has the budget. Our definition: for budgets found offline.
class Table final : public Allocator {
 public:
  explicit Table(Params& p)
      : fracs_(
            p.choice("unit", {{"tokens", false}, {"budget_frac", true}}, false, "what the values are: tokens, or multiples of the budget")),
        table_(read_table(p, "values", true, 0, 1 << 26, "LAYER=VALUE or LAYER.HEAD=VALUE, separated by spaces")) {
    if (table_.empty()) p.fail("allocator 'table' needs 'values', such as \"0=512 3.1=64\"");
  }

  [[nodiscard]] std::string refuses(const ModelShape& model) const override { return refuses_table(table_, "values", model); }

  [[nodiscard]] bool splits_heads() const override {
    return std::any_of(table_.begin(), table_.end(), [](const TableEntry& e) { return e.head >= 0; });
  }

  void allocate(Ops&, const ModelShape&, std::span<const SeqStep>, std::span<ScoredLayer> layers) override {
    for (ScoredLayer& l : layers)
      for (std::int32_t r = 0; r < l.kv.num_rows; ++r)
        l.keep[r] = std::min(l.kv.len[r], tokens(l.layer, r % l.kv.kv_heads, l.target[l.kv.sequence(r)]));
  }
  [[nodiscard]] std::int32_t expected(const ModelShape&, std::int32_t layer, std::int32_t head, std::int32_t target,
                                      std::int32_t n) const override {
    return std::min(n, tokens(layer, head, target));
  }

 private:
  [[nodiscard]] std::int32_t tokens(std::int32_t layer, std::int32_t head, std::int32_t target) const {
    const TableEntry* entry = find_entry(table_, layer, head);
    if (entry == nullptr) return target;
    return static_cast<std::int32_t>(std::min<double>(fracs_ ? entry->value * target : entry->value, 1 << 30));
  }

  bool fracs_;
  std::vector<TableEntry> table_;
};

KVLAB_REGISTER(Allocator, Table, "table", "tokens per layer or head from a list", "our definition: budgets found offline");

}  // namespace

}  // namespace kvlab
