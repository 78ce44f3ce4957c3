#include <algorithm>
#include <unordered_map>
#include <vector>

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

}  // namespace

}  // namespace kvlab
