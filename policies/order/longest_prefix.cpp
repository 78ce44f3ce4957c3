#include <algorithm>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/ceil_div.h"
#include "policies/order/keyed_order.h"

namespace kvlab {

namespace {

// SGLang's `lpm` (python/sglang/srt/managers/schedule_policy.py).
class LongestPrefix final : public ListedOrder {
 public:
  explicit LongestPrefix(Params& p)
      : most_waiting_(p.optional<std::uint32_t>("most_waiting", 128, 0, 1 << 20, "with more waiting requests: first come, first served")),
        in_batch_tokens_(p.optional<std::int32_t>(
            "in_batch_tokens", 32, 0, 1 << 20,
            "a request with at most so many cached tokens that shares as many with one before it comes last; 0: never")) {}

  void on_plan() override {
    is_listed_ = false;
    if (size() > most_waiting_) return;
    found_.clear();
    first_of_.clear();
    for (std::uint32_t i = 0; i < size(); ++i) {
      const RequestId r = KeyedOrder::at(i);
      const Request& request = info(r);
      const std::int32_t cached = request.computed_tokens > 0 ? request.computed_tokens : view().lookup(r);
      found_.push_back({r, comes_last(request, cached) ? -1 : cached});
    }
    std::stable_sort(found_.begin(), found_.end(), [](const Found& a, const Found& b) { return a.cached > b.cached; });
    list_.clear();
    for (const Found& found : found_) list_.push_back(found.request);
    is_listed_ = true;
  }

  // Lookups change when a cached block is lost.
  [[nodiscard]] Horizon stable_for() const override { return is_listed_ ? Horizon::unlimited() : Horizon::whatever_is_cached(); }

 private:
  struct Found {
    RequestId request{};
    std::int32_t cached = 0;  // -1: waits for another to fill the cache
  };

  // A hash covers all tokens up to its end.
  bool comes_last(const Request& r, std::int32_t cached) {
    if (in_batch_tokens_ == 0 || cached > in_batch_tokens_ || r.hash_tokens == 0) return false;
    const auto i = static_cast<std::size_t>(ceil_div(in_batch_tokens_, r.hash_tokens) - 1);
    if (i >= r.hashes.size() || static_cast<std::int64_t>(i + 1) * r.hash_tokens > r.prompt_tokens) return false;
    return !first_of_.insert(r.hashes[i]).second;
  }

  std::uint32_t most_waiting_;
  std::int32_t in_batch_tokens_;
  std::vector<Found> found_;
  std::unordered_set<std::uint64_t> first_of_;
};

KVLAB_REGISTER(Order, LongestPrefix, "longest_prefix", "longest cached prefix first; first come, first served above 128 waiting requests",
               "SGLang 'lpm', Zheng et al. 2023, arXiv:2312.07104");

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
    for (std::uint32_t i = 0; i < size(); ++i) add(KeyedOrder::at(i));
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
