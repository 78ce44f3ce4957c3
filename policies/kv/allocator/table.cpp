#include <cmath>

#include "policies/kv/allocator/allocator.h"
#include "policies/kv/allocator/counts.h"
#include "policies/kv/recipe/trained_tensors.h"

namespace kvlab {

namespace {

class Uniform final : public Allocator {
 public:
  explicit Uniform(Params&) {}
  [[nodiscard]] bool reads_scores() const override { return false; }
  [[nodiscard]] bool keeps_no_state() const override { return true; }
  void allocate(Ops&, const ModelShape&, std::span<const SeqStep>, std::span<ScoredLayer> layers) override {
    for (ScoredLayer& l : layers)
      for (std::int32_t r = 0; r < l.kv.num_rows; ++r) l.keep[r] = std::min(l.kv.len[r], l.target[l.kv.sequence(r)]);
  }
  [[nodiscard]] bool is_uniform() const override { return true; }
  [[nodiscard]] bool has_shares() const override { return false; }  // equal ones
};

KVLAB_REGISTER(Allocator, Uniform, "uniform", "the same budget in every layer and head", "H2O: Zhang et al. 2023, arXiv:2306.14048");

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

// "prune_ratios" [99, layers, KV heads]: line i - 1 has the dropped shares at i %.
class UtilityCurves final : public Allocator {
 public:
  explicit UtilityCurves(Params&) {}

  [[nodiscard]] Needs needs() const override { return {.weights = weights_ == nullptr}; }
  [[nodiscard]] TakesWeights takes_weights() const override { return TakesWeights::kAlways; }
  void set_weights(const std::shared_ptr<const TrainedTensors>& weights) override {
    weights->require(kTensor);
    weights_ = weights;
  }
  [[nodiscard]] std::string refuses(const ModelShape& model) const override {
    return weights_ == nullptr ? "" : weights_->refuses(kTensor, {kLines, model.num_layers, model.kv_heads}, "LU-KV's curves");
  }
  [[nodiscard]] bool splits_heads() const override { return true; }
  void set_budget(const Budget& budget) override { budget_ = budget; }

  // Without curves, the budget.
  [[nodiscard]] std::int32_t expected(const ModelShape& model, std::int32_t layer, std::int32_t head, std::int32_t target,
                                      std::int32_t n) const override {
    if (weights_ == nullptr || target >= n) return std::min(target, n);
    const std::int64_t at = (line(target, n) * model.num_layers + layer) * model.kv_heads;
    std::vector<float> shares;
    for (const float dropped : weights_->floats(kTensor).subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(model.kv_heads)))
      shares.push_back(1.0F - dropped);
    return tokens_by_remainder(shares, head, n);
  }

 private:
  static constexpr const char* kTensor = "prune_ratios";
  static constexpr std::int64_t kLines = 99;

  [[nodiscard]] std::int64_t line(std::int32_t target, std::int32_t n) const {
    const double dropped = budget_.frac > 0 ? budget_.dropped_frac() : 1 - static_cast<double>(target) / n;
    return std::clamp<std::int64_t>(std::llround(std::nearbyint(dropped * 100)) - 1, 0, kLines - 1);
  }

  Budget budget_;
  std::shared_ptr<const TrainedTensors> weights_;
};

KVLAB_REGISTER(Allocator, UtilityCurves, "utility_curves", "shares per layer and head from curves found offline, one for each ratio",
               "LU-KV: Tang et al. 2026, arXiv:2602.08585");

}  // namespace

}  // namespace kvlab
