#include <algorithm>
#include <optional>
#include <unordered_map>
#include <vector>

#include "base/ceil_div.h"
#include "policies/dispatcher/room.h"

namespace kvlab {

namespace {

// Section IV; MixedPoolScheduler of the authors' splitwise-sim, scheduler.py. A machine that takes a prompt out of turn also decodes it.
class Splitwise final : public Dispatcher {
 public:
  explicit Splitwise(Params& p)
      : most_pending_(p.optional<std::int64_t>("prompt_max_pending_tokens", 8192, 1, 1 << 30,
                                               "most prompt tokens that wait on a machine, a new prompt with them; an idle machine takes "
                                               "any")),
        memory_cap_(p.optional<double>("token_memory_cap_frac", 1, 0.01, 1,
                                       "share of its blocks that a token machine is given requests for, at their predicted full length")) {}

  [[nodiscard]] bool changes_roles() const override { return true; }

  Placement place(const Ask& ask, const FleetView& fleet) override {
    reserved_.resize(fleet.num_replicas(), 0);
    foreign_.resize(fleet.num_replicas(), 0);
    return ask.stage == Stage::kPrefill ? arrive(ask, fleet) : Placement::send(token_machine_of(ask));
  }

  void on_leave(const RequestRecord& request) override {
    const auto found = pairs_.find(request.number);
    if (found == pairs_.end()) return;
    const Pair& pair = found->second;
    reserved_[index(pair.token)] -= pair.blocks;
    if (pair.is_foreign) --foreign_[index(pair.token)];
    pairs_.erase(found);
  }

 private:
  struct Pair {
    ReplicaId token{};
    std::int64_t blocks = 0;
    bool is_foreign = false;  // works for the other pool
  };

  Placement arrive(const Ask& ask, const FleetView& fleet) {
    sort_machines(fleet);
    const std::int32_t full_len = ask.request.prompt_tokens + fleet.predicted_tokens();
    const ReplicaId prompt = prompt_machine(ask, fleet);
    const ReplicaId token = fleet.roles(prompt).decode ? prompt : token_machine(fleet, full_len);
    const bool is_whole = token == kNoReplica || token == prompt;
    const ReplicaId decodes = is_whole ? prompt : token;
    const Pair pair{decodes, fleet.blocks_for(decodes, full_len), is_whole || !fleet.roles(decodes).decode};
    reserved_[index(pair.token)] += pair.blocks;
    if (pair.is_foreign) ++foreign_[index(decodes)];
    pairs_[ask.request.number] = pair;
    return is_whole ? Placement::send_whole(prompt) : Placement::send(prompt);
  }

  [[nodiscard]] ReplicaId token_machine_of(const Ask& ask) const {
    const auto found = pairs_.find(ask.request.number);
    return found == pairs_.end() ? ask.from : found->second.token;
  }

  // A prompt machine is mixed while it has requests to decode, a token machine while it has prompt tokens to compute and a request that it
  // prefilled.
  void sort_machines(const FleetView& fleet) {
    prompt_.clear();
    token_.clear();
    mixed_.clear();
    all_.clear();
    for (std::uint32_t i = 0; i < fleet.num_replicas(); ++i) {
      const ReplicaId replica{i};
      const Roles roles = fleet.roles(replica);
      all_.push_back(replica);
      const bool has_other_work = foreign_[i] > 0 && (roles.prefill || fleet.load(replica).outstanding_tokens > 0);
      const bool is_mixed = (roles.prefill && roles.decode) || has_other_work;
      (is_mixed ? mixed_ : roles.prefill ? prompt_ : token_).push_back(replica);
    }
  }

  [[nodiscard]] ReplicaId prompt_machine(const Ask& ask, const FleetView& fleet) const {
    for (const std::vector<ReplicaId>* pool : {&prompt_, &mixed_}) {
      if (pool->empty()) continue;
      const ReplicaId best = fewest_prompt_tokens(*pool, fleet);
      const std::int64_t pending = fleet.load(best).outstanding_tokens;
      if (pending == 0 || pending + ask.request.prompt_tokens <= most_pending_) return best;
    }
    if (!token_.empty()) return fewest_prompt_tokens(token_, fleet);
    return fewest_prompt_tokens(all_, fleet);
  }

  // kNoReplica: none has room.
  [[nodiscard]] ReplicaId token_machine(const FleetView& fleet, std::int32_t full_len) const {
    const auto in_use = [&](ReplicaId replica) {
      const ReplicaLoad load = fleet.load(replica);
      return static_cast<double>(std::max(reserved_[index(replica)], load.used_blocks)) / static_cast<double>(load.num_blocks);
    };
    for (const std::vector<ReplicaId>* pool : {&token_, &mixed_}) {
      if (pool->empty()) continue;
      const ReplicaId best = least_of(std::span<const ReplicaId>(*pool), in_use);
      const double needed = static_cast<double>(fleet.blocks_for(best, full_len)) / static_cast<double>(fleet.load(best).num_blocks);
      if (in_use(best) + needed < memory_cap_) return best;
    }
    return kNoReplica;
  }

  std::int64_t most_pending_;
  double memory_cap_;
  std::unordered_map<std::uint64_t, Pair> pairs_;
  std::vector<std::int64_t> reserved_;  // by machine: blocks at predicted full length
  std::vector<std::int64_t> foreign_;   // by machine: requests served for the other pool
  std::vector<ReplicaId> prompt_, token_, mixed_, all_;
};

KVLAB_REGISTER(Dispatcher, Splitwise, "splitwise", "prompt and token machines chosen in pairs, with a mixed pool between them",
               "Splitwise, Patel et al. 2023, arXiv:2311.18677");

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
