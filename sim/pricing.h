#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "serving/step.h"
#include "sim/cost/cost_model.h"

namespace kvlab {

// For images before the step.
using EncodeCost = std::function<StepCost(std::int64_t images)>;

// Reuses its memory. Layers with the same rows are priced together, each at the mean time of the model's layers. Embedding, head and
// engine time: for rows that end in the step, else for a row of padding.
class StepPricer {
 public:
  // encode: null without images.
  StepPricer(CostModel& cost, const Scheduler& scheduler, EncodeCost encode = nullptr)
      : cost_(cost), scheduler_(scheduler), encode_(std::move(encode)), windows_(cost.windows()) {}
  StepCost price(const InFlightStep& step);

  // In two calls, for ranks that step together. A step without work is one token.
  void collect_rank(const InFlightStep& step);
  StepCost price_rank(const InFlightStep& step, const GroupTokens& group);
  // The collected step: useful, computed, and most in a CUDA graph.
  [[nodiscard]] std::int32_t useful_rows() const { return useful_rows_; }
  [[nodiscard]] std::int32_t computed_rows() const { return useful_rows_ + shape_.padding_rows; }
  [[nodiscard]] std::int32_t largest_graph_rows() const { return scheduler_.largest_graph_tokens(); }
  void pad_to(std::int32_t rows) { shape_.padding_rows = rows - useful_rows_; }

  // The last step; several stages only.
  void stage_times(std::vector<Picoseconds>& times) const {
    cost_.stage_times(shape_, times);
    times[0] += images_time_;
    for (std::size_t i = 0; i < pass_times_.size(); ++i) times[i] += pass_times_[i];
  }
  // Rows in any layers; valid until the next call.
  [[nodiscard]] const StepShape& shape() const { return shape_; }

 private:
  using Rows = std::vector<std::int32_t>;
  struct LayerGroup {
    Rows rows;
    std::int32_t layers = 0;
  };

  // null: every row.
  void collect(const InFlightStep& step, const Rows* rows);
  [[nodiscard]] Rows rows_of_layer(const InFlightStep& step, int layer) const;
  void group_layers(const InFlightStep& step);
  StepCost price_layers(const InFlightStep& step);
  StepCost price_ends(const InFlightStep& step);
  void add_passes(const InFlightStep& step, StepCost& sum);
  void add_stage_times(const StepShape& pass);
  void add_images(const InFlightStep& step, StepCost& sum);

  CostModel& cost_;
  const Scheduler& scheduler_;
  EncodeCost encode_;
  AttentionWindows windows_;
  Picoseconds images_time_{};
  std::vector<Picoseconds> pass_times_;  // of the policy's passes
  StepShape shape_;
  std::int32_t useful_rows_ = 0;
  bool in_parts_ = false;  // rows pass some layers, or prompts are pruned
  std::vector<PrefillPiece> prefills_;
  std::vector<LayerGroup> groups_;
  Rows rows_;
};

}  // namespace kvlab
