#include "app/runs/search.h"

#include <gtest/gtest.h>

#include "base/params.h"
#include "traces/make_trace.h"

namespace kvlab {
namespace {

SearchResult search(const SearchPlan& plan, double limit_per_s) {
  return search_rate(plan, [&](double rate) { return Probe{rate, rate <= limit_per_s ? 0.95 : 0.5, rate, false}; });
}

TEST(SearchRate, FindsTheLimitWithinTheTolerance) {
  const SearchResult found = search({1, 100, 0.9, 0.01}, 37.3);
  EXPECT_LE(found.best_per_s, 37.3);
  EXPECT_GE(found.best_per_s, 37.3 * 0.98);
  EXPECT_EQ(found.note, "");
  EXPECT_LE(found.probes.size(), 12U);
}

TEST(SearchRate, SaysWhenTheRangeDoesNotHoldTheLimit) {
  EXPECT_EQ(search({1, 100, 0.9, 0.01}, 1000).best_per_s, 100);
  EXPECT_NE(search({1, 100, 0.9, 0.01}, 1000).note.find("raise the upper end"), std::string::npos);
  EXPECT_EQ(search({1, 100, 0.9, 0.01}, 0.5).best_per_s, 0);
  EXPECT_NE(search({1, 100, 0.9, 0.01}, 0.5).note.find("lower the lower end"), std::string::npos);
}

TEST(SearchRate, SaysWhenAttainmentIsNotMonotonic) {
  const SearchResult found = search_rate({1, 9, 0.9, 0.01}, [](double rate) {
    return Probe{rate, rate < 2 || (rate > 6 && rate < 8) ? 1.0 : 0.0, rate, false};
  });
  EXPECT_EQ(found.note, "");  // 1 hits, 9 misses, 5 misses, ...: nothing seen contradicts
  const SearchResult other = search_rate({1, 9, 0.9, 0.01}, [](double rate) { return Probe{rate, rate > 4 ? 1.0 : 0.0, rate, false}; });
  EXPECT_NE(other.note.find("not monotonic"), std::string::npos);
}

TEST(SearchRate, KeepsTheLimitOfGaps) {
  SearchPlan plan{1, 100, 0.9, 0.01};
  plan.itl_p99_ms = 20;
  const auto probe = [](double rate) { return Probe{rate, rate <= 60 ? 0.95 : 0.5, rate, false, rate}; };  // gaps of `rate` ms
  const double both = search_rate(plan, probe).best_per_s;
  EXPECT_LE(both, 20);
  EXPECT_GE(both, 20 * 0.98);
  plan.itl_p99_ms = 80;
  EXPECT_LE(search_rate(plan, probe).best_per_s, 60) << "the SLO holds, too";
  plan.has_slo = false;
  EXPECT_GE(search_rate(plan, probe).best_per_s, 80 * 0.98);
}

TEST(RescaledTrace, HasTheRateAskedFor) {
  const char* const yaml =
      "{generate: {requests: 500, arrival: {poisson: {rate_per_s: 4}}, prompt_tokens: {fixed: {value: 10}}, output_tokens: {fixed: {value: "
      "2}}}}";
  const auto open = [&] {
    Params p = Params::from_text(yaml);
    return make_trace(p, 3);
  };
  const double native = mean_rate(*open(), 0);
  EXPECT_NEAR(native, 4, 0.8);
  RescaledTrace faster(open(), native / 40);
  EXPECT_NEAR(mean_rate(faster, 0), 40, 0.01);
}

}  // namespace
}  // namespace kvlab
