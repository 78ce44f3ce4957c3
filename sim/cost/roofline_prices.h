#pragma once

#include <array>
#include <memory>

#include "sim/cost/hardware_spec.h"
#include "sim/cost/step_prices.h"
#include "sim/cost/step_work.h"

namespace kvlab {

// Every operation takes max(FLOPs / reachable FLOP/s, bytes / reachable bytes/s) plus one launch, which counts as extrapolated; collectives
// have their own prices.
class RooflinePrices final : public StepPrices {
 public:
  RooflinePrices(ModelSpec model, HardwareSpec hardware, Parallel parallel, std::shared_ptr<const Collectives> collectives);

  [[nodiscard]] TokenPrice tokens(std::int64_t tokens) const override;
  [[nodiscard]] Price head(std::int64_t rows) const override;
  [[nodiscard]] DecodeCurve decode_attention(std::int64_t rows) const override;
  [[nodiscard]] Price mixed_attention(const StepShape& shape) const override;
  [[nodiscard]] Price policy(const PolicyOp& op) const override;
  [[nodiscard]] Price send(std::int64_t tokens) const override;

  // The pieces, for profiles that cover some operations only. Picoseconds.
  [[nodiscard]] double op_ps(const OpWork& op) const;  // one call
  void add_collectives(std::int64_t tokens, TokenPrice& price) const;
  [[nodiscard]] double prefill_ps(const PrefillPiece& piece) const;           // one layer, without its launch
  [[nodiscard]] double decode_ps(std::int64_t rows, double kv_tokens) const;  // one layer, without its launch
  [[nodiscard]] double launch_ps() const { return hardware_.launch_ns * 1e3; }
  [[nodiscard]] const Parallel& parallel() const { return parallel_; }
  [[nodiscard]] const ModelSpec& model() const { return model_; }

 private:
  // format: of the weights; null: computed in the model's type.
  [[nodiscard]] double body_ps(double flops, double bytes, const WeightFormat* format = nullptr) const;
  [[nodiscard]] SampleGrid::Value collective(Collective op, int ranks, std::int64_t tokens) const;

  ModelSpec model_;
  HardwareSpec hardware_;
  Parallel parallel_;
  std::shared_ptr<const Collectives> collectives_;
  AttentionWork work_;  // of one rank
  std::array<double, kNumDtypes> ps_per_flop_of_{};
  double ps_per_flop_, ps_per_byte_;  // ps_per_flop_: of the model's type
};

}  // namespace kvlab
