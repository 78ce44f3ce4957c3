#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "sim/cost/profile.h"
#include "sim/cost/roofline_prices.h"

namespace kvlab {

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
  [[nodiscard]] bool is_of_class(const ProfileOp& op, const Ops& ops, std::size_t layer_class) const;
  [[nodiscard]] Value moe(std::int64_t tokens) const;
  [[nodiscard]] Value attention(double prompt, double before, double rows, double length) const;
  [[nodiscard]] Value prompt_attention(std::size_t attention_class, const PrefillPiece& piece, double rows, double length) const;
  [[nodiscard]] double saved_by_sharing(double tokens) const;  // ps, by a prompt with a longer one
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
