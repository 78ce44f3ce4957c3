#pragma once

#include <array>

#include "sim/cost/hardware_spec.h"
#include "sim/cost/step_prices.h"
#include "sim/cost/step_work.h"

namespace kvlab {

// Every operation takes max(FLOPs / reachable FLOP/s, bytes / reachable bytes/s) plus one launch; collectives take their
// bytes over the link plus a latency per hop. All of it counts as extrapolated.
class RooflinePrices final : public StepPrices {
 public:
  RooflinePrices(ModelSpec model, HardwareSpec hardware, Parallel parallel);

  [[nodiscard]] TokenPrice tokens(std::int64_t tokens) const override;
  [[nodiscard]] Price experts(std::int64_t tokens) const override;
  [[nodiscard]] Price exchange(const GroupTokens& group) const override;
  [[nodiscard]] Price head(std::int64_t rows) const override;
  [[nodiscard]] DecodeCurve decode_attention(std::int64_t rows) const override;
  [[nodiscard]] Price mixed_attention(const StepShape& shape) const override;
  [[nodiscard]] Price policy(const PolicyOp& op) const override;
  [[nodiscard]] Price send(std::int64_t tokens) const override;

  // The pieces, for profiles that cover some operations only. Picoseconds.
  [[nodiscard]] double op_ps(const OpWork& op) const;                         // one call
  [[nodiscard]] double layer_all_reduce_ps(std::int64_t tokens) const;        // one all-reduce of the step's activations
  [[nodiscard]] double layer_all_to_all_ps(std::int64_t tokens) const;        // experts: dispatch, or combine
  [[nodiscard]] double prefill_ps(const PrefillPiece& piece) const;           // one layer, without its launch
  [[nodiscard]] double decode_ps(std::int64_t rows, double kv_tokens) const;  // one layer, without its launch
  [[nodiscard]] double launch_ps() const { return hardware_.launch_ns * 1e3; }
  [[nodiscard]] const Parallel& parallel() const { return parallel_; }
  [[nodiscard]] const ModelSpec& model() const { return model_; }

 private:
  // format: of the weights; null: computed in the model's type.
  [[nodiscard]] double body_ps(double flops, double bytes, const WeightFormat* format = nullptr) const;
  [[nodiscard]] double link_ps(std::int64_t bytes, std::int64_t hops) const;

  ModelSpec model_;
  HardwareSpec hardware_;
  Parallel parallel_;
  AttentionWork work_;  // of one rank
  std::array<double, kNumDtypes> ps_per_flop_of_{};
  double ps_per_flop_, ps_per_byte_;  // ps_per_flop_: of the model's type
};

}  // namespace kvlab
