#include <algorithm>
#include <vector>

#include "policies/router/outstanding.h"

namespace kvlab {

namespace {

// SGLang's cache-aware router (sgl-router/src/policies/cache_aware.rs): while loads are balanced, the replica that holds most
// of the prompt, or, where none holds enough, the one that was given the least content so far; else the one with the fewest
// requests. SGLang guesses what replicas hold from what it sent them; here the replica is asked. What it was given stands
// for the size of SGLang's tree, whose own evictions are left out.
class PrefixAffinity final : public Router {
 public:
  explicit PrefixAffinity(Params& p)
      : cache_threshold_(p.optional<double>("cache_threshold_frac", 0.3, 0, 1,
                                            "share of the prompt that a replica must hold more than, to be chosen for it")),
        abs_threshold_(
            p.optional<std::int64_t>("balance_abs_threshold", 64, 0, 1 << 30,
                                     "loads may be unbalanced when the largest exceeds the smallest by more requests than this, ...")),
        rel_threshold_(p.optional<double>("balance_rel_threshold", 1.5, 1, 1e6, "... and is more than this many times as large")) {}

  ReplicaId route(const RequestRecord& arrival, const FleetView& fleet) override {
    read(fleet);
    const std::uint32_t chosen = is_balanced() ? by_content(arrival) : by_load();
    given_tokens_[chosen] += arrival.prompt_tokens - cached_[chosen];
    return ReplicaId{chosen};
  }

 private:
  void read(const FleetView& fleet) {
    const std::uint32_t n = fleet.num_replicas();
    given_tokens_.resize(n, 0);
    load_.resize(n);
    cached_.resize(n);
    for (std::uint32_t i = 0; i < n; ++i) {
      load_[i] = outstanding(fleet, i);
      cached_[i] = fleet.cached_tokens(ReplicaId{i});
    }
  }

  [[nodiscard]] bool is_balanced() const {
    const auto [least, most] = std::minmax_element(load_.begin(), load_.end());
    return *most - *least <= abs_threshold_ || static_cast<double>(*most) <= rel_threshold_ * static_cast<double>(*least);
  }

  [[nodiscard]] std::uint32_t by_load() const {
    return static_cast<std::uint32_t>(std::min_element(load_.begin(), load_.end()) - load_.begin());
  }

  // Of equals the less loaded, then the first.
  [[nodiscard]] std::uint32_t by_content(const RequestRecord& arrival) const {
    std::uint32_t most = 0, emptiest = 0;
    for (std::uint32_t i = 1; i < cached_.size(); ++i) {
      if (cached_[i] > cached_[most] || (cached_[i] == cached_[most] && load_[i] < load_[most])) most = i;
      if (given_tokens_[i] < given_tokens_[emptiest]) emptiest = i;
    }
    const bool holds_enough = static_cast<double>(cached_[most]) > cache_threshold_ * arrival.prompt_tokens;
    return holds_enough ? most : emptiest;
  }

  double cache_threshold_;
  std::int64_t abs_threshold_;
  double rel_threshold_;
  std::vector<std::int64_t> given_tokens_;   // by replica: prompt tokens it was sent and did not hold
  std::vector<std::int64_t> load_, cached_;  // as of this arrival
};

KVLAB_REGISTER(Router, PrefixAffinity, "prefix_affinity", "the replica that caches most of the prompt, while loads are balanced",
               "SGLang router, cache_aware policy (Zheng et al. 2023, arXiv:2312.07104)");

}  // namespace

}  // namespace kvlab
