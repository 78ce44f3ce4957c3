#include <algorithm>
#include <optional>
#include <vector>

#include "base/ceil_div.h"
#include "policies/dispatcher/room.h"

namespace kvlab {

namespace {

// Li et al. 2025. Imbalance: idle nodes of the lighter stage also serve the other. Extreme: a node changes its role. Load formula,
// thresholds and period are our choice. Block layout and merged copies: `transfer:`.
class FlowKv final : public Dispatcher {
 public:
  explicit FlowKv(Params& p)
      : period_(p.milliseconds("period_ms", 1000, 1, 1e9, "time between two looks of the controller")),
        step_tokens_(p.optional<std::int32_t>("step_tokens", 2048, 1, 1 << 24,
                                              "prompt tokens still to compute that load a node as much as all of its KV memory in use")),
        imbalance_ratio_(p.optional<double>("imbalance_ratio", 2, 1, 1e6,
                                            "the stages are unbalanced if the mean load of one is more than this many times the other's")),
        extreme_ratio_(p.optional<double>("extreme_ratio", 4, 1, 1e6, "a node flips if it is more than this many times the other's, ...")),
        extreme_periods_(p.optional<int>("extreme_periods", 3, 1, 1 << 20, "... in this many periods in a row")),
        least_load_(p.optional<double>("least_load", 0.5, 0.001, 1e6, "a smaller mean load counts as this much in the ratio")),
        idle_load_(p.optional<double>("idle_load", 0.25, 0, 1e6, "a node of the lighter stage with a smaller load serves both")),
        flips_(p.flag("flip", true, "nodes may change their role; one of each stage remains")) {
    if (extreme_ratio_ < imbalance_ratio_) p.fail("'extreme_ratio' is less than 'imbalance_ratio': set it to that or more");
  }

  [[nodiscard]] bool changes_roles() const override { return true; }
  [[nodiscard]] Span period() const override { return period_; }

  Placement place(const Ask& ask, const FleetView& fleet) override {
    candidates_.assign(ask.among.begin(), ask.among.end());
    if (heavier_ == ask.stage) add_idle_nodes(ask, fleet);
    const ReplicaId chosen = least_of(std::span<const ReplicaId>(candidates_), [&](ReplicaId replica) { return load_of(fleet, replica); });
    return ask.stage == Stage::kPrefill && !fleet.roles(chosen).prefill ? Placement::send_whole(chosen) : Placement::send(chosen);
  }

  void on_timer(const FleetView& fleet, FleetControl& control) override {
    if (flipping_ != kNoReplica && fleet.roles(flipping_) == new_roles_) flipping_ = kNoReplica;
    const double prefill = mean_load(fleet, Stage::kPrefill), decode = mean_load(fleet, Stage::kDecode);
    const double ratio = std::max(prefill, decode) / std::max(std::min(prefill, decode), least_load_);
    const Stage heavier = prefill > decode ? Stage::kPrefill : Stage::kDecode;
    const bool goes_on = heavier_ == heavier;
    extremes_ = ratio <= extreme_ratio_ ? 0 : goes_on ? extremes_ + 1 : 1;
    heavier_.reset();
    if (ratio > imbalance_ratio_) heavier_ = heavier;
    if (flips_ && flipping_ == kNoReplica && extremes_ >= extreme_periods_) flip_towards(heavier, fleet, control);
  }

 private:
  // Share of KV memory used or needed, plus prompt tokens in steps. Prefill nodes' need is estimated.
  [[nodiscard]] double load_of(const FleetView& fleet, ReplicaId replica) const {
    const ReplicaLoad load = fleet.load(replica);
    const std::int64_t asked_for = fleet.roles(replica).prefill
                                       ? ceil_div<std::int64_t>(load.outstanding_tokens, fleet.view(replica, 0).block_tokens())
                                       : fleet.queued_blocks(replica);
    return static_cast<double>(load.used_blocks + asked_for) / static_cast<double>(load.num_blocks) +
           static_cast<double>(load.outstanding_tokens) / step_tokens_;
  }

  [[nodiscard]] bool serves_only(const FleetView& fleet, ReplicaId replica, Stage stage) const {
    const Roles roles = fleet.roles(replica);
    return replica != flipping_ && roles.takes(stage) && roles.prefill != roles.decode;
  }

  void add_idle_nodes(const Ask& ask, const FleetView& fleet) {
    const Stage lighter = ask.stage == Stage::kPrefill ? Stage::kDecode : Stage::kPrefill;
    for (std::uint32_t i = 0; i < fleet.num_replicas(); ++i)
      if (serves_only(fleet, ReplicaId{i}, lighter) && load_of(fleet, ReplicaId{i}) < idle_load_) candidates_.push_back(ReplicaId{i});
  }

  // 0 if no node serves only that stage.
  [[nodiscard]] double mean_load(const FleetView& fleet, Stage stage) const {
    double sum = 0;
    int nodes = 0;
    for (std::uint32_t i = 0; i < fleet.num_replicas(); ++i) {
      if (!serves_only(fleet, ReplicaId{i}, stage)) continue;
      sum += load_of(fleet, ReplicaId{i});
      ++nodes;
    }
    return nodes == 0 ? 0 : sum / nodes;
  }

  void flip_towards(Stage heavier, const FleetView& fleet, FleetControl& control) {
    const Stage lighter = heavier == Stage::kPrefill ? Stage::kDecode : Stage::kPrefill;
    candidates_.clear();
    for (std::uint32_t i = 0; i < fleet.num_replicas(); ++i)
      if (serves_only(fleet, ReplicaId{i}, lighter)) candidates_.push_back(ReplicaId{i});
    if (candidates_.size() < 2) return;
    flipping_ = least_of(std::span<const ReplicaId>(candidates_), [&](ReplicaId replica) { return load_of(fleet, replica); });
    new_roles_ = heavier == Stage::kPrefill ? Roles{true, false} : Roles{false, true};
    extremes_ = 0;
    control.change_roles(flipping_, new_roles_);
  }

  Span period_;
  std::int32_t step_tokens_;
  double imbalance_ratio_, extreme_ratio_;
  int extreme_periods_;
  double least_load_, idle_load_;
  bool flips_;
  std::optional<Stage> heavier_;
  int extremes_ = 0;                 // consecutive extreme periods
  ReplicaId flipping_ = kNoReplica;  // draining
  Roles new_roles_;
  std::vector<ReplicaId> candidates_;
};

KVLAB_REGISTER(Dispatcher, FlowKv, "flowkv", "balances load, and lets nodes of the lighter stage serve the other one or flip",
               "FlowKV, Li et al. 2025, arXiv:2504.03775");

}  // namespace

}  // namespace kvlab
