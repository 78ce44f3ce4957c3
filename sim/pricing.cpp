#include "sim/pricing.h"

#include <algorithm>

#include "base/error.h"

namespace kvlab {

namespace {

constexpr int kAllLayers = -1;

bool covers(const StepEntry& entry, int layer) { return layer >= entry.layer_begin && (entry.layer_end == 0 || layer < entry.layer_end); }

bool is_partial(const StepEntry& entry) { return entry.layer_begin > 0 || entry.layer_end > 0; }

}  // namespace

// The rows that pass through `layer`; kAllLayers: every row.
void StepPricer::collect(const InFlightStep& step, int layer) {
  prefills_.clear();
  shape_ = StepShape{};
  const AttentionWindows windows = cost_.windows();
  const auto add_row = [&](std::int32_t tokens, std::int32_t kv) {
    if (tokens > 1) {
      prefills_.push_back({tokens, kv});
    } else {
      add_decode_row(shape_, kv, windows);
    }
  };
  for (const StepEntry& entry : step.entries) {
    if (layer != kAllLayers && !covers(entry, layer)) continue;
    add_row(std::max(entry.tokens, entry.padded_tokens), entry.kv_before);
    if (entry.layer_end == 0) ++shape_.head_rows;
  }
  shape_.idle_rows = step.idle_rows;
  shape_.head_rows += step.idle_rows;
  shape_.prefills = prefills_;
  useful_rows_ = static_cast<std::int32_t>(shape_.tokens());
  pad_to(scheduler_.padded_tokens(useful_rows_));
  shape_.ops = step.policy.ops;
}

StepCost StepPricer::price(const InFlightStep& step) {
  const bool has_parts = std::any_of(step.entries.begin(), step.entries.end(), is_partial);
  if (!has_parts) collect(step, kAllLayers);
  StepCost cost = has_parts ? price_layers(step) : cost_.step(shape_);
  add_passes(step, cost);
  return cost;
}

void StepPricer::collect_rank(const InFlightStep& step) {
  if (std::any_of(step.entries.begin(), step.entries.end(), is_partial))
    throw InputError("ranks that step together compute whole steps: a scheduler that plans some of the layers needs 'parallel' without dp");
  collect(step, kAllLayers);
  if (useful_rows_ == 0) pad_to(scheduler_.padded_tokens(1));
}

StepCost StepPricer::price_rank(const InFlightStep& step, const GroupTokens& group) {
  shape_.group = &group;
  StepCost cost = cost_.step(shape_);
  add_passes(step, cost);
  return cost;
}

// A policy's own forward passes come one after the other when the step is done; all of their time is the policy's.
void StepPricer::add_passes(const InFlightStep& step, StepCost& sum) {
  for (const ForwardPass& pass : step.policy.passes) {
    const PrefillPiece piece{pass.new_tokens, pass.kv_tokens};
    StepShape shape;
    if (pass.new_tokens > 1) {
      shape.prefills = std::span(&piece, 1);
    } else {
      add_decode_row(shape, pass.kv_tokens, cost_.windows());
    }
    StepCost cost = cost_.step(shape);
    ByFooting policy{};
    for (std::size_t f = 0; f < kFootings; ++f) policy[f] = cost.of(static_cast<Footing>(f));
    cost.times = {};
    cost.row(CostPart::kPolicy) = policy;
    sum.add(cost);
  }
}

// Layer by layer group: between two edges the same rows pass. Head and embedding are what a whole step of the finishing rows
// costs beyond its layers.
StepCost StepPricer::price_layers(const InFlightStep& step) {
  const int num_layers = cost_.num_layers();
  edges_ = {0, num_layers};
  for (const StepEntry& entry : step.entries) {
    edges_.push_back(entry.layer_begin);
    edges_.push_back(entry.layer_end == 0 ? num_layers : entry.layer_end);
  }
  std::sort(edges_.begin(), edges_.end());
  edges_.erase(std::unique(edges_.begin(), edges_.end()), edges_.end());
  StepCost sum;
  for (std::size_t i = 0; i + 1 < edges_.size(); ++i) {
    collect(step, edges_[i]);
    if (shape_.decodes == 0 && shape_.idle_rows == 0 && prefills_.empty()) continue;
    shape_.layers = edges_[i + 1] - edges_[i];
    shape_.ops = {};
    sum.add(cost_.step(shape_));
  }
  collect(step, num_layers - 1);
  if (shape_.head_rows > 0) {
    sum.add(cost_.step(shape_));
    shape_.layers = num_layers;
    shape_.ops = {};
    sum.add(cost_.step(shape_), -1);
  }
  return sum;
}

}  // namespace kvlab
