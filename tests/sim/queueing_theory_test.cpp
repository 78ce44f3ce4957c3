// The simulator against formulas that do not know it: mean waiting times of single- and many-server queues, and Little's law.
#include <gtest/gtest.h>

#include <cmath>

#include "base/random.h"
#include "tests/short_run.h"
#include "tests/sim/sim_support.h"

namespace kvlab::testing {
namespace {

struct Mean {
  double mean = 0, std_error = 0;
};

template <class F>
Mean replicate(int times, F&& run) {
  double sum = 0, squares = 0;
  for (int seed = 1; seed <= times; ++seed) {
    const double x = run(static_cast<std::uint64_t>(seed));
    sum += x;
    squares += x * x;
  }
  const double mean = sum / times;
  return {mean, std::sqrt((squares / times - mean * mean) / (times - 1))};
}

constexpr double kStepMs = 1.0;

// Every step takes kStepMs whatever it holds, so a request of n output tokens is served for n steps.
SimSetup constant_steps(int servers) {
  SimSetup setup = basic_setup("vllm_v1", "{budget_tokens: 4096, async_scheduling: false, max_num_seqs: " + std::to_string(servers) + "}");
  LinearPrices prices;
  prices.step = ps_of_ns(kStepMs * 1e6);
  prices.token = prices.kv_token = {};
  prices.cell = 1'000'000'000;
  setup.make_cost_model = [prices] { return std::make_unique<LinearCost>(prices); };
  setup.memory.block_tokens = 1 << 16;  // one block a request: memory plays no part
  setup.memory.num_blocks = 64;
  setup.timeline_interval = Span{0};
  return setup;
}

// Mean wait before service in ms, requests of the first tenth left out (the queue starts empty).
double mean_wait_ms(const SimSetup& setup, std::vector<TraceRequest> requests) {
  const std::size_t count = requests.size();
  VectorTrace trace(std::move(requests));
  Recorder records;
  simulate(setup, trace, records);
  double sum = 0;
  std::size_t counted = 0;
  for (const RequestRecord& r : records.requests) {
    if (r.number < count / 10) continue;
    sum += to_ms(r.scheduled - r.arrival);
    ++counted;
  }
  return sum / static_cast<double>(counted);
}

std::vector<TraceRequest> poisson(std::uint64_t seed, std::size_t count, double mean_gap_ms,
                                  const std::function<std::int32_t(std::uint64_t)>& output) {
  std::vector<TraceRequest> requests;
  double at = 0;
  for (std::size_t i = 0; i < count; ++i) {
    at += Draw{seed, Purpose::kArrival, i, 0, 0}.exponential(mean_gap_ms);
    requests.push_back(request_at(at, 1, output(i)));
  }
  return requests;
}

TEST(QueueingTheory, MeanWaitOfMD1) {  // Pollaczek and Khinchine: W = rho / (2 (1 - rho)) service times
  if (short_run()) GTEST_SKIP() << "millions of steps take too long with KVLAB_SHORT set";
  for (const double rho : {0.3, 0.6, 0.9}) {
    const Mean wait = replicate(32, [&](std::uint64_t seed) {
      return mean_wait_ms(constant_steps(1), poisson(seed, 40'000, kStepMs / rho, [](std::uint64_t) { return 1; }));
    });
    EXPECT_NEAR(wait.mean, kStepMs * rho / (2 * (1 - rho)), 4 * wait.std_error) << "at load " << rho;
    EXPECT_LT(wait.std_error, 0.05 * wait.mean);
  }
}

// Geometric service of mean m steps: the exponential's discrete sibling. P(n > k) = (1 - 1/m)^k.
std::int32_t geometric(std::uint64_t seed, std::uint64_t request, double mean) {
  const double u = Draw{seed, Purpose::kOutputLength, request, 0, 0}.uniform();
  return 1 + static_cast<std::int32_t>(std::log1p(-u) / std::log1p(-1 / mean));
}

TEST(QueueingTheory, MeanWaitOfMM1) {  // W = rho / (1 - rho) service times; E[S^2] = (2 - p) / p^2 for the geometric one
  if (short_run()) GTEST_SKIP() << "millions of steps take too long with KVLAB_SHORT set";
  constexpr double kMeanSteps = 500;
  for (const double rho : {0.3, 0.6, 0.8}) {
    const Mean wait = replicate(32, [&](std::uint64_t seed) {
      return mean_wait_ms(constant_steps(1), poisson(seed, 20'000, kMeanSteps * kStepMs / rho,
                                                     [&](std::uint64_t i) { return geometric(seed, i, kMeanSteps); }));
    });
    const double p = 1 / kMeanSteps;
    const double expected = rho / kMeanSteps * ((2 - p) / (p * p)) / (2 * (1 - rho)) * kStepMs;
    EXPECT_NEAR(wait.mean, expected, 4 * wait.std_error) << "at load " << rho;
    EXPECT_NEAR(expected, kMeanSteps * rho / (1 - rho), 0.01 * expected);
    EXPECT_LT(wait.std_error, 0.05 * wait.mean);
  }
}

double erlang_c(int k, double offered) {  // probability that an arrival waits
  double term = 1, sum = 1;
  for (int i = 1; i < k; ++i) sum += term *= offered / i;
  const double last = term * offered / k * (k / (k - offered));
  return last / (sum + last);
}

TEST(QueueingTheory, MeanWaitOfMMk) {  // W = C(k, a) / (k - a) service times; arrivals also wait for the running step to end
  if (short_run()) GTEST_SKIP() << "millions of steps take too long with KVLAB_SHORT set";
  constexpr double kMeanSteps = 2000;
  for (const int k : {2, 4, 8}) {
    for (const double rho : {0.5, 0.8}) {
      const double offered = k * rho;
      const Mean wait = replicate(32, [&](std::uint64_t seed) {
        return mean_wait_ms(constant_steps(k), poisson(seed, 20'000, kMeanSteps * kStepMs / offered,
                                                       [&](std::uint64_t i) { return geometric(seed, i, kMeanSteps); }));
      });
      const double expected = kMeanSteps * kStepMs * erlang_c(k, offered) / (k - offered);
      EXPECT_NEAR(wait.mean, expected + 0.5 * kStepMs, 4 * wait.std_error + 0.5 * kStepMs) << k << " servers at load " << rho;
      EXPECT_LT(wait.std_error, 0.05 * wait.mean + 0.1);
    }
  }
}

// L = lambda W over a run that starts and ends empty: the time integral of requests in the system equals the sum of their times.
TEST(QueueingTheory, LittlesLawHolds) {
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    SimSetup setup = basic_setup("vllm_v1", "{budget_tokens: 512, max_num_seqs: 8}");
    setup.memory.num_blocks = 200;
    setup.max_model_len = 2000;
    setup.timeline_interval = Span(2'000);
    std::vector<TraceRequest> requests = poisson(seed, 300, 0.3, [&](std::uint64_t i) { return geometric(seed, i, 60); });
    for (TraceRequest& r : requests) r.prompt_tokens = 200;
    VectorTrace trace(requests);
    Recorder records;
    const RunSummary summary = simulate(setup, trace, records);
    double in_system = 0;
    for (const TimelineSample& s : records.samples) in_system += static_cast<double>(s.running + s.waiting + s.swapped) * 0.002;  // ms
    double times = 0;
    for (const RequestRecord& r : records.requests) times += to_ms(r.last_token - r.arrival);
    EXPECT_NEAR(in_system, times, 0.01 * times);
    EXPECT_EQ(summary.latencies.completed, 300u);
  }
}

}  // namespace
}  // namespace kvlab::testing
