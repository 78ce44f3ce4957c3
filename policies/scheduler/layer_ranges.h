#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "policies/scheduler/scheduler.h"

namespace kvlab {

// Layer skipping; accuracy is not modelled.

void tell_setting(const EngineSetting& setting, Params& p);
EngineSetting told_setting(const Params& p);

// kMostLayers while parameters are described. Throws InputError without a model or above kMostLayers.
std::int32_t model_layers(const Params& p);

// Throws InputError if `value` is above the model's layers.
void check_layers(const Params& p, const std::string& key, std::int32_t value, std::int32_t layers);

class DrawsBySeed {
 public:
  virtual ~DrawsBySeed() = default;
};

// Takes layers out of entries planned by scheduler `batching`. Blocks hold all layers.
class LayerSkipper : public Scheduler {
 public:
  void plan(ReplicaView& view, StepPlan& plan) final;
  [[nodiscard]] Horizon stable_for(const ReplicaView& /*view*/) const final { return Horizon::none(); }
  [[nodiscard]] int pipeline_depth() const final { return inner_->pipeline_depth(); }
  [[nodiscard]] Time wants_plan_at() const final { return inner_->wants_plan_at(); }
  [[nodiscard]] std::int32_t padded_tokens(std::int32_t tokens) const final { return inner_->padded_tokens(tokens); }
  [[nodiscard]] std::int32_t largest_graph_tokens() const final { return inner_->largest_graph_tokens(); }
  [[nodiscard]] StepBounds step_bounds(std::int32_t max_model_len) const final { return inner_->step_bounds(max_model_len); }
  [[nodiscard]] std::int32_t num_graphs() const final { return inner_->num_graphs(); }
  [[nodiscard]] bool wants_contiguous_memory() const final { return inner_->wants_contiguous_memory(); }
  [[nodiscard]] bool lets_overtake() const final { return inner_->lets_overtake(); }
  [[nodiscard]] bool pads_batches() const final { return inner_->pads_batches(); }
  [[nodiscard]] bool uses_predictor() const final { return inner_->uses_predictor(); }
  void on_repeat(std::int64_t plans) final { inner_->on_repeat(plans); }
  [[nodiscard]] bool plans_layers() const final { return true; }
  void on_finish(RequestId r) final;

 protected:
  explicit LayerSkipper(Params& p);
  [[nodiscard]] std::int32_t layers() const { return layers_; }
  virtual void skip(const ReplicaView& view, StepPlan& plan) = 0;
  virtual void forget(RequestId /*r*/) {}

  static bool is_decode(const ReplicaView& view, const StepEntry& entry) {
    return entry.tokens == 1 && view.info(entry.request).computed_tokens >= view.info(entry.request).prompt_tokens;
  }
  static std::int32_t add_set(StepPlan& plan, const LayerSet& set);

 private:
  std::int32_t layers_;
  std::unique_ptr<Scheduler> inner_;  // null only while parameters are described
};

}  // namespace kvlab
