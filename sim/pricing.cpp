#include "sim/pricing.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace kvlab {

namespace {

bool passes(const StepPlan& plan, const StepEntry& entry, int layer) {
  if (layer < entry.layer_begin || (entry.layer_end > 0 && layer >= entry.layer_end)) return false;
  return entry.layer_set == 0 || plan.layer_sets[static_cast<std::size_t>(entry.layer_set) - 1][static_cast<std::size_t>(layer)];
}

// A recursive model reuses the weights in later layers.
bool passes_weights(const StepPlan& plan, const StepEntry& entry, int layer, int num_layers) {
  if (plan.loop_layers == 0) return passes(plan, entry, layer);
  int times = 0;
  for (int l = layer; l < num_layers; l += plan.loop_layers) times += passes(plan, entry, l) ? 1 : 0;
  if (times > 1) throw InternalError("an entry passes a layer of a recursive model more than once in a step");
  return times == 1;
}

std::int32_t rows_of(const StepEntry& entry) { return std::max(entry.tokens, entry.padded_tokens); }

// Subject of an error.
const char* maker_of_parts(const InFlightStep& step) {
  return step.policy.pruned.empty() ? "a scheduler that plans some of the layers" : "a kv_policy with a prompt_pruner or prompt_rewriter";
}

}  // namespace

// A local shape keeps sums in registers.
void StepPricer::collect(const InFlightStep& step, const Rows* rows) {
  prefills_.clear();
  StepShape shape;
  bool in_parts = step.loop_layers > 0 || !step.policy.pruned.empty();
  add_decode_rows(shape, step.decodes, windows_);
  shape.head_rows = shape.decodes;
  for (std::size_t i = 0; i < step.entries.size(); ++i) {
    const StepEntry& entry = step.entries[i];
    in_parts |= !entry.passes_all_layers();
    const std::int32_t tokens = rows != nullptr ? (*rows)[i] : rows_of(entry);
    if (tokens > 1)
      prefills_.push_back({tokens, entry.kv_before});
    else if (tokens > 0)
      add_decode_row(shape, entry.kv_before, windows_);
    else
      continue;
    shape.head_rows += entry.ends() ? 1 : 0;
  }
  in_parts_ = in_parts;
  shape.idle_rows = step.idle_rows;
  shape.head_rows += step.idle_rows;
  shape.prefills = prefills_;
  useful_rows_ = static_cast<std::int32_t>(shape.tokens());
  shape.padding_rows = scheduler_.padded_tokens(useful_rows_) - useful_rows_;
  shape.ops = step.policy.ops;
  shape.sparse_layers = step.policy.sparse_layers;
  shape_ = shape;
}

StepCost StepPricer::price(const InFlightStep& step) {
  collect(step, nullptr);
  StepCost cost = in_parts_ ? price_layers(step) : cost_.step(shape_);
  add_passes(step, cost);
  images_time_ = {};
  if (step.images > 0) add_images(step, cost);
  return cost;
}

void StepPricer::collect_rank(const InFlightStep& step) {
  collect(step, nullptr);
  if (in_parts_)
    throw InputError(fmt::format("ranks that step together compute whole steps: {} needs 'parallel' without dp", maker_of_parts(step)));
  if (useful_rows_ == 0) pad_to(scheduler_.padded_tokens(1));
}

StepCost StepPricer::price_rank(const InFlightStep& step, const GroupTokens& group) {
  shape_.group = &group;
  StepCost cost = cost_.step(shape_);
  add_passes(step, cost);
  images_time_ = {};
  if (step.images > 0) add_images(step, cost);
  return cost;
}

void StepPricer::add_images(const InFlightStep& step, StepCost& sum) {
  if (encode_ == nullptr) throw InternalError("a step encodes images without a cost of encoding");
  const StepCost cost = encode_(step.images);
  images_time_ = cost.total;
  sum.add(cost);
}

// Passes come in turn after the step, through all stages; their time is the policy's.
void StepPricer::add_passes(const InFlightStep& step, StepCost& sum) {
  pass_times_.clear();
  for (const ForwardPass& pass : step.policy.passes) {
    const PrefillPiece piece{pass.new_tokens, pass.kv_tokens};
    StepShape shape;
    shape.layers = pass.layers;
    if (pass.new_tokens > 1)
      shape.prefills = std::span(&piece, 1);
    else
      add_decode_row(shape, pass.kv_tokens, windows_);
    const StepCost cost = cost_.step(shape);
    if (cost_.num_stages() > 1) add_stage_times(shape);
    sum.flops += cost.flops;
    sum.bytes += cost.bytes;
    for (std::size_t f = 0; f < kFootings; ++f) sum.add(CostPart::kPolicy, static_cast<Footing>(f), cost.of(static_cast<Footing>(f)));
  }
}

void StepPricer::add_stage_times(const StepShape& pass) {
  std::vector<Picoseconds> times;
  cost_.stage_times(pass, times);
  pass_times_.resize(times.size());
  for (std::size_t i = 0; i < times.size(); ++i) pass_times_[i] += times[i];
}

StepPricer::Rows StepPricer::rows_of_layer(const InFlightStep& step, int layer) const {
  Rows rows;
  for (const StepEntry& entry : step.entries) rows.push_back(passes_weights(step, entry, layer, cost_.num_layers()) ? rows_of(entry) : 0);
  for (const PrunedPrompt& prompt : step.policy.pruned) {
    std::int32_t& of_prompt = rows[prompt.place];
    of_prompt = std::min(of_prompt, prompt.tokens[static_cast<std::size_t>(layer)]);
  }
  return rows;
}

// Layers with the same rows, adjacent or not. Layers without rows are left out.
void StepPricer::group_layers(const InFlightStep& step) {
  const int num_layers = cost_.num_layers(), own_weights = step.loop_layers > 0 ? step.loop_layers : num_layers;
  groups_.clear();
  for (int layer = 0; layer < own_weights; ++layer) {
    rows_ = rows_of_layer(step, layer);
    if (std::all_of(rows_.begin(), rows_.end(), [](std::int32_t rows) { return rows == 0; })) continue;
    const auto same = std::find_if(groups_.rbegin(), groups_.rend(), [&](const LayerGroup& group) { return group.rows == rows_; });
    if (same == groups_.rend())
      groups_.push_back({rows_, 1});
    else
      ++same->layers;
  }
}

// Costs beyond layers: embedding, head and policy operations.
StepCost StepPricer::price_ends(const InFlightStep& step) {
  rows_.clear();
  for (const StepEntry& entry : step.entries) rows_.push_back(entry.ends() ? rows_of(entry) : 0);
  collect(step, &rows_);
  if (useful_rows_ == 0) pad_to(1);
  StepCost cost = cost_.step(shape_);
  shape_.layers = cost_.num_layers();
  shape_.ops = {};
  cost.add(cost_.step(shape_), -1);
  return cost;
}

StepCost StepPricer::price_layers(const InFlightStep& step) {
  if (cost_.num_stages() > 1)
    throw InputError(fmt::format("stages of a pipeline compute whole steps: {} needs 'parallel' without pp", maker_of_parts(step)));
  if (step.decodes.count > 0) throw InternalError("a step in parts has rows without layers");
  group_layers(step);
  StepCost sum = price_ends(step);
  for (const LayerGroup& group : groups_) {
    collect(step, &group.rows);
    shape_.layers = group.layers;
    shape_.ops = {};
    sum.add(cost_.step(shape_));
  }
  collect(step, nullptr);
  return sum;
}

}  // namespace kvlab
