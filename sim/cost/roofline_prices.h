#pragma once

#include <array>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "sim/cost/hardware_spec.h"
#include "sim/cost/profile.h"
#include "sim/cost/step_prices.h"
#include "sim/cost/step_work.h"

namespace kvlab {

// max(FLOPs / reachable FLOP/s, bytes / reachable bytes/s) plus a launch. Without collectives.
class RooflinePrices final : public StepPrices {
 public:
  RooflinePrices(ModelSpec model, HardwareSpec hardware, Parallel parallel, std::shared_ptr<const Collectives> collectives);

  [[nodiscard]] TokenPrice tokens(std::int64_t tokens) const override;
  [[nodiscard]] Price experts(std::int64_t tokens) const override;
  [[nodiscard]] Price exchange(const GroupTokens& group) const override;
  [[nodiscard]] Price head(std::int64_t rows) const override;
  [[nodiscard]] DecodeCurve decode_attention(std::size_t attention_class, std::int64_t rows) const override;
  [[nodiscard]] Price mixed_attention(const StepShape& shape) const override;
  [[nodiscard]] Price policy(const PolicyOp& op) const override;
  [[nodiscard]] Price send(std::int64_t tokens) const override;

  // For incomplete profiles, in picoseconds.
  [[nodiscard]] double op_ps(const OpWork& op) const;  // one call
  // To all layers (layer_classes) and the step.
  void add_collectives(std::int64_t tokens, TokenPrice& price) const;
  // One layer, without launch.
  [[nodiscard]] double prefill_ps(const AttentionWork& work, const PrefillPiece& piece) const;
  [[nodiscard]] double decode_ps(const AttentionWork& work, std::int64_t rows, double kv_tokens) const;
  [[nodiscard]] double launch_ps() const { return hardware_.launch_ns * 1e3; }
  [[nodiscard]] double attention_floor_ps() const { return hardware_.attention_floor_ns * 1e3; }
  [[nodiscard]] const Parallel& parallel() const { return parallel_; }
  [[nodiscard]] const ModelSpec& model() const { return model_; }
  [[nodiscard]] const std::vector<AttentionClass>& attention() const { return attention_; }
  [[nodiscard]] const AttentionWork& work(std::size_t attention_class) const { return works_[attention_class]; }

 private:
  // null: the model's type.
  [[nodiscard]] double body_ps(double flops, double bytes, const WeightFormat* format = nullptr) const;
  [[nodiscard]] double experts_ps(const OpWork& op) const;
  [[nodiscard]] double grouped_ps(const OpWork& op, const HardwareSpec::Experts& reached, double product_seconds) const;
  [[nodiscard]] double floor_ps(const WeightFormat* format) const;  // null: without weights
  [[nodiscard]] SampleGrid::Value collective(Collective op, int ranks, std::int64_t tokens) const;
  [[nodiscard]] double decode_ops_ps(const AttentionWork& work, std::int64_t rows) const;  // one layer
  [[nodiscard]] double mixed_layer_ps(std::size_t attention_class, const StepShape& shape) const;

  ModelSpec model_;
  HardwareSpec hardware_;
  Parallel parallel_;
  std::shared_ptr<const Collectives> collectives_;
  std::vector<LayerClass> layers_;
  std::vector<AttentionClass> attention_;
  std::vector<AttentionWork> works_;  // by attention class
  std::array<double, kNumDtypes> ps_per_flop_of_{};
  double ps_per_flop_, ps_per_byte_;  // the model's type
};

// Measured tables. The roofline fills gaps, and scales to other parallelism (extrapolated).
class ProfilePrices final : public StepPrices {
 public:
  // roofline: the run's parallelism; roofline_as_measured: the profile's tp. Tables are scaled by their ratio.
  ProfilePrices(std::shared_ptr<const Profile> profile, std::shared_ptr<const RooflinePrices> roofline,
                std::shared_ptr<const RooflinePrices> roofline_as_measured);

  [[nodiscard]] TokenPrice tokens(std::int64_t tokens) const override;
  [[nodiscard]] Price experts(std::int64_t tokens) const override;
  [[nodiscard]] Price exchange(const GroupTokens& group) const override { return roofline_->exchange(group); }
  [[nodiscard]] Price head(std::int64_t rows) const override;
  [[nodiscard]] DecodeCurve decode_attention(std::size_t attention_class, std::int64_t rows) const override;
  [[nodiscard]] Price mixed_attention(const StepShape& shape) const override;
  [[nodiscard]] Price policy(const PolicyOp& op) const override;
  [[nodiscard]] Price send(std::int64_t tokens) const override { return roofline_->send(tokens); }
  [[nodiscard]] const SkewRule* skew() const override { return profile_->skew ? &*profile_->skew : nullptr; }
  [[nodiscard]] Picoseconds host_time(const StepShape&) const override { return profile_->host_time; }

 private:
  using Value = SampleGrid::Value;
  using Ops = std::vector<OpWork>;
  // layer_class: into layers_; nullopt: once per step. feed_forward, norms: also receive those parts; may be null.
  void add_ops(ProfileOp::Axis axis, std::optional<std::size_t> layer_class, std::int64_t count, const Ops& ops, const Ops& as_measured,
               Price& price, Price* feed_forward = nullptr, Price* norms = nullptr) const;
  [[nodiscard]] Value moe(std::int64_t tokens) const;
  [[nodiscard]] Value attention(double prompt, double before, double rows, double length) const;
  [[nodiscard]] Value prompt_attention(std::size_t attention_class, const PrefillPiece& piece, double rows, double length) const;
  [[nodiscard]] Value attention_of_mixed(std::size_t attention_class, const StepShape& shape) const;

  std::shared_ptr<const Profile> profile_;
  std::shared_ptr<const RooflinePrices> roofline_, as_measured_;
  const ModelSpec& model_;
  std::vector<LayerClass> layers_;
  std::set<std::string, std::less<>> layer_ops_;
  Parallel parallel_, measured_at_;
  double smallest_prompt_ = 0;  // in the attention table; 0: no prompts
  bool has_mixed_ = false;      // attention has prompts with decode rows
  double attention_scale_ = 1;  // heads per rank over measured
};

}  // namespace kvlab
