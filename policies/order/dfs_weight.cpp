#include <algorithm>
#include <unordered_map>
#include <vector>

#include "policies/order/keyed_order.h"

namespace kvlab {

namespace {

// SGLang's `dfs-weight` (python/sglang/srt/managers/schedule_policy.py, v0.5.9). A node's own requests come last.
class DfsWeight final : public ListedOrder {
 public:
  explicit DfsWeight(Params& p)
      : most_waiting_(p.optional<std::uint32_t>("most_waiting", 128, 0, 1 << 20,
                                                "with more waiting requests: first come, first served (SGLang: no limit)")) {}

  [[nodiscard]] RequestId at(std::uint32_t position) const override {
    if (is_due_) walk();
    return ListedOrder::at(position);
  }
  void on_plan() override {
    is_listed_ = false;
    is_due_ = size() <= most_waiting_;
  }

  // Lookups change when a cached block is lost.
  [[nodiscard]] Horizon stable_for() const override { return is_listed_ || is_due_ ? Horizon::unlimited() : Horizon::whatever_is_cached(); }

 private:
  struct Node {
    std::int64_t weight = 0;  // requests at and below it
    std::vector<std::size_t> children;
    std::vector<RequestId> requests;  // whose cached prefix ends here
  };

  void walk() const {
    nodes_.assign(1, Node{});
    node_of_.clear();
    for (std::uint32_t i = 0; i < size(); ++i) add(KeyedOrder::at(i));  // NOLINT(bugprone-parent-virtual-call): by key
    list_.clear();
    take_walk();
    is_listed_ = true;
    is_due_ = false;
  }

  // A hash covers all tokens up to its end.
  void add(RequestId r) const {
    const Request& request = info(r);
    const std::int32_t cached = request.computed_tokens > 0 ? 0 : view().lookup(r);
    const std::int32_t depth = request.hash_tokens > 0 ? cached / request.hash_tokens : 0;
    std::size_t at = 0;
    ++nodes_[0].weight;
    for (std::int32_t i = 0; i < depth && static_cast<std::size_t>(i) < request.hashes.size(); ++i) {
      const auto [found, is_new] = node_of_.try_emplace(request.hashes[static_cast<std::size_t>(i)], nodes_.size());
      if (is_new) {
        nodes_[at].children.push_back(nodes_.size());
        nodes_.emplace_back();
      }
      at = found->second;
      ++nodes_[at].weight;
    }
    nodes_[at].requests.push_back(r);
  }

  void take_walk() const {
    struct Visit {
      std::size_t node, next_child;
    };
    std::vector<Visit> stack{{0, 0}};
    const auto is_heavier = [&](std::size_t a, std::size_t b) { return nodes_[a].weight > nodes_[b].weight; };
    while (!stack.empty()) {
      Visit& visit = stack.back();
      Node& node = nodes_[visit.node];
      if (visit.next_child == 0) std::stable_sort(node.children.begin(), node.children.end(), is_heavier);
      if (visit.next_child < node.children.size()) {
        stack.push_back({node.children[visit.next_child++], 0});
        continue;
      }
      list_.insert(list_.end(), node.requests.begin(), node.requests.end());
      stack.pop_back();
    }
  }

  std::uint32_t most_waiting_;
  mutable bool is_due_ = false;  // the next at() walks
  mutable std::vector<Node> nodes_;
  mutable std::unordered_map<std::uint64_t, std::size_t> node_of_;
};

KVLAB_REGISTER(Order, DfsWeight, "dfs_weight", "a walk through the tree of cached prefixes, the branch with the most requests first",
               "SGLang 'dfs-weight', Zheng et al. 2023, arXiv:2312.07104");

}  // namespace

}  // namespace kvlab
