#include "base/random.h"
#include "policies/router/outstanding.h"

namespace kvlab {

namespace {

// Of two different replicas drawn at random the one with fewer requests; of equals the one drawn first.
class PowerOfTwo final : public Router {
 public:
  explicit PowerOfTwo(Params&) {}

  [[nodiscard]] bool is_random() const override { return true; }
  void set_seed(std::uint64_t seed) override { seed_ = seed; }

  ReplicaId route(const RequestRecord& /*arrival*/, const FleetView& fleet) override {
    const std::uint32_t n = fleet.num_replicas();
    if (n == 1) return ReplicaId{0};
    const auto first = static_cast<std::uint32_t>(Draw{seed_, Purpose::kRouter, fleet.num_arrived(), 0}.below(n));
    auto second = static_cast<std::uint32_t>(Draw{seed_, Purpose::kRouter, fleet.num_arrived(), 1}.below(n - 1));
    if (second >= first) ++second;
    return ReplicaId{outstanding(fleet, second) < outstanding(fleet, first) ? second : first};
  }

 private:
  std::uint64_t seed_ = 0;
};

KVLAB_REGISTER(Router, PowerOfTwo, "power_of_two", "the less loaded of two random replicas",
               "Mitzenmacher 2001, The Power of Two Choices in Randomized Load Balancing");

}  // namespace

}  // namespace kvlab
