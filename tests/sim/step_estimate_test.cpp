// ReplicaView::step_time() in the simulator: the estimate of a step is the time that the step then takes.
#include "policies/order/keyed_order.h"
#include "tests/sim/sim_support.h"

namespace kvlab::testing {
namespace {

using Compared = std::vector<std::pair<Span, Span>>;  // estimate and duration of each step

// By arrival; it asks for an estimate of each step of one request.
class Asking final : public KeyedOrder {
 public:
  explicit Asking(Compared& to) : to_(to) {}
  [[nodiscard]] bool watches_steps() const override { return true; }
  void on_step_end(std::span<const StepEntry> entries, Span duration) override {
    ASSERT_EQ(entries.size(), 1U);
    const StepEntry& entry = entries[0];
    StepOutline outline{1, entry.kv_before, 0, 0};
    if (entry.kv_before == 0) outline = {0, 0, entry.tokens, 0};
    const std::optional<Span> estimate = view().step_time(outline);
    ASSERT_TRUE(estimate.has_value());
    to_.emplace_back(*estimate, duration);
  }

 private:
  [[nodiscard]] std::int64_t rank(RequestId /*r*/) const override { return 0; }
  Compared& to_;
};

Compared compared_steps(const LinearPrices& prices, std::int32_t output) {
  Compared compared;
  SimSetup setup = basic_setup("vllm_v1", "{async_scheduling: false}");
  setup.make_order = [&] { return std::make_unique<Asking>(compared); };
  setup.make_cost_model = linear_cost(prices);
  summary_of(setup, {request_at(0, 100, output)});
  EXPECT_EQ(compared.size(), static_cast<std::size_t>(output));
  return compared;
}

TEST(StepEstimate, IsTheTimeOfTheStep) {
  const Compared compared = compared_steps({.cell = 110}, 30);
  for (const auto& [estimate, duration] : compared) EXPECT_EQ(estimate, duration);
  EXPECT_GT(compared.at(0).second, compared.at(1).second) << "a prompt of 100 tokens, then one token";
}

// Host time comes on top: a host of 7 us makes every step so much longer.
TEST(StepEstimate, HasHostTime) {
  for (const std::int64_t host : {0, 7'000'000})
    for (const auto& [estimate, duration] : compared_steps({.host = Picoseconds{host}}, 5)) EXPECT_EQ(ns(estimate - duration), host / 1000);
}

}  // namespace
}  // namespace kvlab::testing
