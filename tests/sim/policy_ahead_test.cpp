// Decode steps of KV policies that are carried out many at once give the very records of single steps.
#include <cmath>

#include "sim/kv_cost/recipe_footprint.h"
#include "tests/short_run.h"
#include "tests/sim/random_runs.h"

namespace kvlab::testing {
namespace {

constexpr ModelShape kAheadModel{4, 8, 2, 64, 128};

// Linear prices, and operations of a policy along a curve: their times run along no line.
class CurvedOps final : public StubCost {
 public:
  CurvedOps(const LinearPrices& prices, std::int64_t* asked) : linear_(prices), asked_(asked) {}
  StepCost step(const StepShape& shape) override {
    StepCost cost = linear_.step(shape);
    add_ops(shape, cost);
    if (asked_ != nullptr) ++*asked_;
    return cost;
  }
  DecodeSpan decode_span(const StepShape& shape) override {
    DecodeSpan span = linear_.decode_span(shape);
    add_ops(shape, span.base);
    return span;
  }
  [[nodiscard]] Picoseconds host_time(const StepShape& shape) const override { return linear_.host_time(shape); }
  double prefill_seconds(std::int32_t tokens, std::int32_t kv_before) override { return linear_.prefill_seconds(tokens, kv_before); }

 private:
  static void add_ops(const StepShape& shape, StepCost& cost) {
    for (const PolicyOp& op : shape.ops) {
      const Picoseconds time{op.launches * 1000 + std::llround(97 * std::sqrt(static_cast<double>(op.bytes + op.flops)))};
      cost.add(CostPart::kPolicy, Footing::kRoofline, time);
      cost.flops += op.flops;
      cost.bytes += op.bytes;
    }
  }
  LinearCost linear_;
  std::int64_t* asked_;
};

Recipe recipe_with(const std::string& name, std::int32_t budget) {
  const Recipe own = load_recipe(name);
  return own.has_budget || own.selector != "all" ? load_recipe(name, budget) : own;
}

void use_recipe(const std::string& name, std::int32_t budget, SimSetup& setup) {
  setup.make_footprint = [recipe = recipe_with(name, budget)] { return std::make_unique<RecipeFootprint>(recipe, kAheadModel, 16); };
}

class PolicyAhead : public ::testing::TestWithParam<std::string> {};

TEST_P(PolicyAhead, ChangesNothing) {
  const std::vector<std::pair<std::string, std::string>> schedulers = {{"vllm_v1", "{budget_tokens: 256, max_num_seqs: 12}"},
                                                                       {"sarathi", "{budget_tokens: 96, max_num_seqs: 12}"},
                                                                       {"vllm_v0", "{max_num_seqs: 12, preemption: swap}"}};
  const std::uint64_t seeds = full_run() ? 12 : 1;
  for (const auto& [scheduler, parameters] : schedulers) {
    for (const bool caches : {false, true}) {
      for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
        const auto draw = [&](std::uint64_t step) { return Draw{seed, Purpose::kTest, 98, step, caches ? 1U : 0U}; };
        SimSetup setup = basic_setup(scheduler, parameters);
        use_recipe(GetParam(), 144, setup);
        setup.memory.prefix_caching = caches;
        setup.memory.num_blocks = static_cast<std::int64_t>(80 + draw(0).below(200));
        setup.memory.host_blocks = 40 * static_cast<std::int64_t>(draw(1).below(3));
        setup.max_model_len = 1000;
        LinearPrices prices;
        prices.host = seed % 2 == 0 ? Picoseconds{} : Picoseconds{static_cast<std::int64_t>(draw(2).below(9'000'000))};
        prices.cell = static_cast<std::int64_t>(100 + draw(3).below(5000));
        setup.make_cost_model = [prices] { return std::make_unique<CurvedOps>(prices, nullptr); };
        setup.timeline_interval = Span(static_cast<std::int64_t>(1'000'000 + draw(4).below(20'000'000)));
        const Workload w = random_workload(seed, 24, 0.05 + 3 * draw(5).uniform(), draw(6).below(2) == 0 ? 60 : 250);
        ASSERT_EQ(run(setup, w, false), run(setup, w, true)) << scheduler << (caches ? " with" : " without") << " caching, seed " << seed;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Recipes, PolicyAhead,
                         ::testing::Values("snapkv", "h2o", "quest", "kivi2", "shadowkv", "streaming", "sliding_window", "tova",
                                           "pyramidkv", "adakv", "expected_attention", "knorm", "chunkkv", "keydiff", "paged_eviction",
                                           "lazy_eviction", "lagkv", "scissorhands", "duo", "scope_slide", "fp8", "flexgen_int4",
                                           "mustafar50", "gear", "zipcache", "snapkv_kivi2", "snapkv_d2o", "h2o_offload", "infinigen",
                                           "retrieval_attention", "recycled_attention", "minicache", "razor_compensation", "twilight",
                                           "pqcache", "rocketkv", "spe_cache", "token_select", "mpcache_dynamic", "r_kv", "turboquant4"),
                         [](const auto& info) { return info.param; });

// One request alone: its decode steps are priced a few at a time.
TEST(PolicyAheadOf, StepsAreSkipped) {
  for (const char* name : {"snapkv", "h2o", "streaming"}) {
    Workload w;
    w.requests.push_back(request_at(0, 400, 500));
    std::int64_t asked[2] = {0, 0};
    for (const bool skips : {false, true}) {
      SimSetup setup = basic_setup("vllm_v1", "{}");
      use_recipe(name, 144, setup);
      setup.timeline_interval = Span(1'000'000'000);
      setup.make_cost_model = [count = &asked[skips ? 1 : 0]] { return std::make_unique<CurvedOps>(LinearPrices{}, count); };
      run(setup, w, skips);
    }
    EXPECT_GE(asked[0], 500) << name;
    EXPECT_LE(asked[1], 60) << name;
  }
}

}  // namespace
}  // namespace kvlab::testing
