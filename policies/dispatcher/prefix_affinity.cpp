#include <algorithm>
#include <vector>

#include "policies/dispatcher/room.h"

namespace kvlab {

namespace {

// sgl-router/src/policies/cache_aware.rs. If no replica has enough of the prompt: the one given the least content. Unbalanced: fewest
// requests. SGLang estimates caches from what it sent; here replicas are asked.
class PrefixAffinity final : public Dispatcher {
 public:
  explicit PrefixAffinity(Params& p)
      : cache_threshold_(p.optional<double>("cache_threshold_frac", 0.3, 0, 1,
                                            "share of the prompt that a replica must hold more than, to be chosen for it")),
        abs_threshold_(
            p.optional<std::int64_t>("balance_abs_threshold", 64, 0, 1 << 30,
                                     "loads may be unbalanced when the largest exceeds the smallest by more requests than this, ...")),
        rel_threshold_(p.optional<double>("balance_rel_threshold", 1.5, 1, 1e6, "... and is more than this many times as large")) {}

  Placement place(const Ask& ask, const FleetView& fleet) override {
    read(ask.among, fleet);
    const std::size_t chosen = is_balanced() ? by_content(ask) : by_load();
    given_tokens_[index(ask.among[chosen])] += ask.request.prompt_tokens - cached_[chosen];
    return Placement::send(ask.among[chosen]);
  }

 private:
  void read(std::span<const ReplicaId> among, const FleetView& fleet) {
    given_tokens_.resize(fleet.num_replicas(), 0);
    load_.clear();
    cached_.clear();
    for (const ReplicaId replica : among) {
      load_.push_back(outstanding(fleet, replica));
      cached_.push_back(fleet.cached_tokens(replica));
    }
  }

  [[nodiscard]] bool is_balanced() const {
    const auto [least, most] = std::minmax_element(load_.begin(), load_.end());
    return *most - *least <= abs_threshold_ || static_cast<double>(*most) <= rel_threshold_ * static_cast<double>(*least);
  }

  [[nodiscard]] std::size_t by_load() const {
    return static_cast<std::size_t>(std::min_element(load_.begin(), load_.end()) - load_.begin());
  }

  // Ties: less loaded, then first.
  [[nodiscard]] std::size_t by_content(const Ask& ask) const {
    const auto given = [&](std::size_t i) { return given_tokens_[index(ask.among[i])]; };
    std::size_t most = 0, emptiest = 0;
    for (std::size_t i = 1; i < cached_.size(); ++i) {
      if (cached_[i] > cached_[most] || (cached_[i] == cached_[most] && load_[i] < load_[most])) most = i;
      if (given(i) < given(emptiest)) emptiest = i;
    }
    const bool holds_enough = static_cast<double>(cached_[most]) > cache_threshold_ * ask.request.prompt_tokens;
    return holds_enough ? most : emptiest;
  }

  double cache_threshold_;
  std::int64_t abs_threshold_;
  double rel_threshold_;
  std::vector<std::int64_t> given_tokens_;  // by replica: prompt tokens sent that it lacked
  std::vector<std::int64_t> load_, cached_;
};

KVLAB_REGISTER(Dispatcher, PrefixAffinity, "prefix_affinity", "the replica that caches most of the prompt, while loads are balanced",
               "SGLang router, cache_aware policy (Zheng et al. 2023, arXiv:2312.07104)");

}  // namespace

}  // namespace kvlab
