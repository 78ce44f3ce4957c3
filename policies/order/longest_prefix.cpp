#include <algorithm>
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
      const RequestId r = ListedOrder::at(i);
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

}  // namespace

}  // namespace kvlab
