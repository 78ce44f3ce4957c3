#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "sim/cost/hardware_spec.h"
#include "sim/cost/step_prices.h"
#include "sim/cost/step_sums.h"
#include "sim/cost/step_work.h"

namespace kvlab {

// Integer picoseconds, rounded once and cached: per token or head count, decode attention as cells per row count. step() and decode_span()
// share cells, base + slope * (tokens - begin), so spans equal single steps exactly.
class StepCostModel final : public CostModel {
 public:
  StepCostModel(std::shared_ptr<const StepPrices> prices, ModelSpec model, const HardwareSpec& hardware, Parallel parallel,
                EngineTimes engine = {});

  StepCost step(const StepShape& shape) override;
  DecodeSpan decode_span(const StepShape& shape) override;
  [[nodiscard]] Picoseconds host_time(const StepShape& shape) const override {
    return prices_->host_time(shape) + engine_.host_of(shape.decodes + static_cast<std::int64_t>(shape.prefills.size()));
  }
  void stage_times(const StepShape& shape, std::vector<Picoseconds>& stages) override;
  [[nodiscard]] int num_stages() const override { return parallel_.pp; }
  [[nodiscard]] int num_layers() const override { return static_cast<int>(model_.layers); }
  [[nodiscard]] AttentionWindows windows() const override {
    return {static_cast<std::int32_t>(model_.sliding_window), static_cast<std::int32_t>(model_.some_window)};
  }
  [[nodiscard]] double peak_flops() const override { return peak_flops_; }
  [[nodiscard]] double peak_bytes_per_s() const override { return peak_bytes_per_s_; }
  [[nodiscard]] std::string likely_cause() const override { return likely_cause_; }

 private:
  struct TokenEntry {
    PartSums layers, once, send;  // send: to the next stage
    Work layers_work, once_work;
  };
  struct HeadEntry {
    bool is_filled = false;
    PartSums price;
    Work work;
  };
  struct Cell {
    std::int64_t begin, end;  // cached tokens; end excluded
    Picoseconds base, slope;  // at begin; per token
    Footing footing;
  };
  struct Attention {
    AttentionClass layers;
    AttentionWork work;
    std::vector<std::vector<Cell>> cells;
  };
  struct Decode {
    Picoseconds time{}, per_token{}, per_max_token{};
    std::int64_t tokens_end = 0, max_end = 0;  // excluded
    int bucket = -1;
    Footing footing = Footing::kExtrapolated;
  };

  static ByFooting round(const Price& price);
  static void charge_layers(StepCost& sum, const TokenPrice::Layer& price);
  void charge_layers(StepCost& cost, const StepCost& all, std::int64_t layers) const;
  [[nodiscard]] Picoseconds of_engine(const LayerClass& layers) const;
  TokenEntry make_tokens(std::int64_t tokens) const;
  HeadEntry make_head(std::int64_t rows) const;
  const TokenEntry& tokens_at(std::int64_t tokens) {
    const auto at = static_cast<std::size_t>(tokens);
    return at < tokens_.size() && tokens_[at] != nullptr ? *tokens_[at] : new_tokens(tokens);
  }
  const TokenEntry& new_tokens(std::int64_t tokens);
  // All layers, tokens of all ranks; work: a rank's share.
  const StepCost& experts_at(std::int64_t tokens);
  const HeadEntry& head_at(std::int64_t rows) {
    const auto at = static_cast<std::size_t>(rows);
    return at < head_.size() && head_[at].is_filled ? head_[at] : new_head(rows);
  }
  const HeadEntry& new_head(std::int64_t rows);
  const std::vector<Cell>& cells_of(std::size_t at, std::int64_t rows) {
    const std::vector<std::vector<Cell>>& cells = attention_[at].cells;
    const auto row = static_cast<std::size_t>(rows);
    return row < cells.size() && !cells[row].empty() ? cells[row] : new_cells(at, rows);
  }
  const std::vector<Cell>& new_cells(std::size_t at, std::int64_t rows);
  [[nodiscard]] std::vector<Cell> make_cells(std::size_t at, std::int64_t rows) const;
  [[nodiscard]] const Cell& cell_at(std::size_t at, std::int64_t rows, std::int64_t kv_tokens);
  [[nodiscard]] Decode decode_at(std::size_t at, const StepShape& shape);
  [[nodiscard]] Decode with_skew(Decode d, const DecodeBatch& batch, const Cell& mean, std::size_t at);
  void add_attention(const StepShape& shape, std::int64_t layers, StepCost& cost);
  void add_work(const StepShape& shape, std::int64_t layers, StepCost& cost);
  void add_attention_work(const Attention& attention, const StepShape& shape, std::int64_t layers, StepCost& cost) const;
  void add_experts(const StepShape& shape, std::int64_t layers, StepCost& cost);
  void add_policy(std::span<const PolicyOp> ops, StepCost& cost) const;
  void add_growth(const StepShape& shape, std::size_t at, DecodeSpan& span) const;
  void check_work(const StepShape& shape) const;
  [[nodiscard]] std::int64_t steps_in_bucket(const StepShape& shape, int bucket, std::int64_t limit) const;

  std::shared_ptr<const StepPrices> prices_;
  ModelSpec model_;
  Parallel parallel_;
  EngineTimes engine_;
  bool has_group_;
  Parallel uncut_;  // the rank as one GPU
  std::vector<LayerClass> layers_;
  std::vector<Attention> attention_;
  std::vector<Decode> decodes_;  // last step's, by attention_; empty with prompts
  double peak_flops_, peak_bytes_per_s_;
  double flops_per_token_, flops_per_pair_;  // bounds over all layers; pair: query and attended token
  std::string likely_cause_;
  std::vector<std::unique_ptr<TokenEntry>> tokens_;  // null: not priced
  std::vector<HeadEntry> head_;
  std::unordered_map<std::int64_t, StepCost> experts_;
  TokenEntry large_tokens_;  // latest uncached
  HeadEntry large_head_;
  std::int64_t large_tokens_count_ = -1, large_head_count_ = -1;
};

}  // namespace kvlab
