// The simulator against formulas that do not know it: mean waiting times of single- and many-server queues, of two priority classes with
// and without preemption, mean times in processor sharing, and Little's law. All formulas are exact for the steps simulated but for
// processor sharing, which holds as steps become short: an arrival waits for the end of the running step, and the test allows for that.
#include <array>
#include <cmath>

#include "base/random.h"
#include "tests/short_run.h"
#include "tests/sim/sim_support.h"

namespace kvlab::testing {
namespace {

struct Mean {
  double mean = 0, std_error = 0;
};

using Pair = std::array<double, 2>;

// Means of two results of each run.
template <class F>
std::array<Mean, 2> replicate_pairs(int times, F&& run) {
  Pair sum{}, squares{};
  for (int seed = 1; seed <= times; ++seed) {
    const Pair x = run(static_cast<std::uint64_t>(seed));
    for (std::size_t i = 0; i < 2; ++i) {
      sum[i] += x[i];
      squares[i] += x[i] * x[i];
    }
  }
  std::array<Mean, 2> means;
  for (std::size_t i = 0; i < 2; ++i) {
    const double mean = sum[i] / times;
    means[i] = {mean, std::sqrt((squares[i] / times - mean * mean) / (times - 1))};
  }
  return means;
}

constexpr double kStepMs = 1.0;

// Every step takes kStepMs whatever it holds, so a request of n output tokens is served for n steps.
SimSetup constant_steps(int servers) {
  SimSetup setup = basic_setup("vllm_v1", "{budget_tokens: 4096, async_scheduling: false, max_num_seqs: " + std::to_string(servers) + "}");
  setup.make_cost_model = linear_cost({.step = ps_of_ns(kStepMs * 1e6), .token = {}, .kv_token = {}, .cell = 1'000'000'000});
  setup.memory.block_tokens = 1 << 16;  // one block a request: memory plays no part
  setup.memory.num_blocks = 64;
  setup.timeline_interval = Span{0};
  return setup;
}

// Without the first tenth of the requests (the queue starts empty) and, unless told, the last, after which too few arrive.
std::vector<RequestRecord> counted(const SimSetup& setup, const std::vector<TraceRequest>& requests, bool to_the_end = false) {
  std::vector<RequestRecord> records = records_of(setup, requests).requests;
  const std::size_t count = requests.size(), end = to_the_end ? count : count - count / 10;
  std::erase_if(records, [&](const RequestRecord& r) { return r.number < count / 10 || r.number >= end; });
  return records;
}

// Mean wait before service in ms.
double mean_wait_ms(const SimSetup& setup, const std::vector<TraceRequest>& requests) {
  double sum = 0;
  const std::vector<RequestRecord> records = counted(setup, requests, true);
  for (const RequestRecord& r : records) sum += to_ms(r.scheduled - r.arrival);
  return sum / static_cast<double>(records.size());
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

// Geometric service of mean m steps: the exponential's discrete sibling. P(n > k) = (1 - 1/m)^k.
std::int32_t geometric(std::uint64_t seed, std::uint64_t request, double mean) {
  const double u = Draw{seed, Purpose::kOutputLength, request, 0, 0}.uniform();
  return 1 + static_cast<std::int32_t>(std::log1p(-u) / std::log1p(-1 / mean));
}

// Holds the mean wait of `count` requests per run, with this mean service, to a formula. `slack_ms`: for the end of the running step.
void expect_mean_wait(int servers, double rho, double mean_steps, std::size_t count, double expected_ms, double slack_ms = 0) {
  const Mean wait = replicate_pairs(32, [&](std::uint64_t seed) {
    const auto steps = [&](std::uint64_t i) { return geometric(seed, i, mean_steps); };
    return Pair{mean_wait_ms(constant_steps(servers), poisson(seed, count, mean_steps * kStepMs / (servers * rho), steps)), 0};
  })[0];
  EXPECT_NEAR(wait.mean, expected_ms + slack_ms, 4 * wait.std_error + slack_ms) << servers << " servers at load " << rho;
  EXPECT_LT(wait.std_error, 0.05 * wait.mean + slack_ms / 5);
}

TEST(QueueingTheory, MeanWaitOfMD1) {  // Pollaczek and Khinchine: W = rho / (2 (1 - rho)) service times
  if (short_run()) GTEST_SKIP() << "millions of steps take too long with KVLAB_SHORT set";
  for (const double rho : {0.3, 0.6, 0.9}) expect_mean_wait(1, rho, 1, 40'000, kStepMs * rho / (2 * (1 - rho)));
}

TEST(QueueingTheory, MeanWaitOfMM1) {  // W = rho / (1 - rho) service times; E[S^2] = (2 - p) / p^2 for the geometric one
  if (short_run()) GTEST_SKIP() << "millions of steps take too long with KVLAB_SHORT set";
  constexpr double kMeanSteps = 500, p = 1 / kMeanSteps;
  for (const double rho : {0.3, 0.6, 0.8}) {
    const double expected = rho / kMeanSteps * ((2 - p) / (p * p)) / (2 * (1 - rho)) * kStepMs;
    expect_mean_wait(1, rho, kMeanSteps, 20'000, expected);
    EXPECT_NEAR(expected, kMeanSteps * rho / (1 - rho), 0.01 * expected);
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
  for (const int k : {2, 4, 8})
    for (const double rho : {0.5, 0.8})
      expect_mean_wait(k, rho, kMeanSteps, 20'000, kMeanSteps * kStepMs * erlang_c(k, k * rho) / (k - k * rho), 0.5 * kStepMs);
}

// ---- two priority classes, one server ----

const std::array<RequestFacts, 2> kUrgentAndNot = [] {
  std::array<RequestFacts, 2> facts;
  facts[0].priority = 0;
  facts[1].priority = 1;
  return facts;
}();

struct TwoClasses {
  Pair load{}, mean_steps{};
  [[nodiscard]] double rate(std::size_t i) const { return load[i] / mean_steps[i]; }  // per step
  // The mean work that an arrival finds in the service of class i: rate E[S^2] / 2, of a geometric service.
  [[nodiscard]] double residual(std::size_t i) const {
    const double p = 1 / mean_steps[i];
    return rate(i) * (2 - p) / (p * p) / 2;
  }
};

// Both classes in one Poisson stream.
std::vector<TraceRequest> two_classes(std::uint64_t seed, std::size_t count, const TwoClasses& c) {
  const double rate = c.rate(0) + c.rate(1);
  const auto class_of = [&](std::uint64_t i) {
    return Draw{seed, Purpose::kClass, i, 0, 0}.uniform() < c.rate(0) / rate ? std::size_t{0} : std::size_t{1};
  };
  std::vector<TraceRequest> requests =
      poisson(seed, count, kStepMs / rate, [&](std::uint64_t i) { return geometric(seed, i, c.mean_steps[class_of(i)]); });
  for (std::size_t i = 0; i < count; ++i) requests[i].facts = &kUrgentAndNot[class_of(i)];
  return requests;
}

// Means by class of time(record) in ms.
Pair mean_by_class(const SimSetup& setup, const std::vector<TraceRequest>& requests,
                   const std::function<Span(const RequestRecord&)>& time) {
  Pair sum{}, number{};
  for (const RequestRecord& r : counted(setup, requests)) {
    const auto of = static_cast<std::size_t>(r.facts->priority);
    sum[of] += to_ms(time(r));
    ++number[of];
  }
  return {sum[0] / number[0], sum[1] / number[1]};
}

// A preempted request computes its text again in its next step, which takes as long as any other: it resumes without loss.
SimSetup one_server_by_priority(bool preemptive) {
  SimSetup setup = constant_steps(1);
  setup.make_scheduler =
      policy<SchedulerRegistry>("scheduler", "vllm_v1", "{budget_tokens: 100000, async_scheduling: false, max_num_seqs: 1}");
  setup.make_order = policy<OrderRegistry>("order", "priority", preemptive ? "{preemptive: true}" : "{}");
  return setup;
}

constexpr std::array<TwoClasses, 3> kTwoClasses = {TwoClasses{{0.3, 0.3}, {500, 500}}, TwoClasses{{0.2, 0.6}, {200, 800}},
                                                   TwoClasses{{0.6, 0.2}, {400, 100}}};

// Mean times by class are those of a formula.
void expect_by_class(bool preemptive, const std::function<Span(const RequestRecord&)>& time,
                     const std::function<Pair(const TwoClasses&)>& formula_ms) {
  for (const TwoClasses& c : kTwoClasses) {
    const auto found = replicate_pairs(
        32, [&](std::uint64_t seed) { return mean_by_class(one_server_by_priority(preemptive), two_classes(seed, 20'000, c), time); });
    const Pair expected = formula_ms(c);
    for (std::size_t i = 0; i < 2; ++i) {
      EXPECT_NEAR(found[i].mean, expected[i], 4 * found[i].std_error) << "class " << i << " at loads " << c.load[0] << ", " << c.load[1];
      EXPECT_LT(found[i].std_error, 0.05 * found[i].mean);
    }
  }
}

TEST(QueueingTheory, MeanWaitsOfTwoPrioritiesWithoutPreemption) {  // Cobham 1954: W_k = W_0 / ((1 - sigma_(k-1)) (1 - sigma_k))
  if (short_run()) GTEST_SKIP() << "millions of steps take too long with KVLAB_SHORT set";
  expect_by_class(
      false, [](const RequestRecord& r) { return r.scheduled - r.arrival; },
      [](const TwoClasses& c) {
        const double found = c.residual(0) + c.residual(1), first = 1 - c.load[0], both = 1 - c.load[0] - c.load[1];
        return Pair{found / first * kStepMs, found / (first * both) * kStepMs};
      });
}

// Preemptive resume, T_k = E[S_k] / (1 - sigma_(k-1)) + W_0k / ((1 - sigma_(k-1)) (1 - sigma_k)) with W_0k of the classes up to k, for a
// server that changes at the end of a step alone: the urgent class then also waits for half a step where it finds the other in service,
// and of n steps of the other class n - 1 are followed by whatever urgent work came during them.
TEST(QueueingTheory, MeanTimesOfTwoPrioritiesWithPreemption) {
  if (short_run()) GTEST_SKIP() << "millions of steps take too long with KVLAB_SHORT set";
  expect_by_class(
      true, [](const RequestRecord& r) { return r.last_token - r.arrival; },
      [](const TwoClasses& c) {
        const double first = 1 - c.load[0], both = 1 - c.load[0] - c.load[1];
        return Pair{(c.mean_steps[0] + (c.residual(0) + c.load[1] / 2) / first) * kStepMs,
                    ((c.residual(0) + c.residual(1)) / (first * both) + 1 + (c.mean_steps[1] - 1) / first) * kStepMs};
      });
}

// ---- processor sharing ----

// A step takes kStepMs for each request in it and gives each one token, so that all requests share the server equally. No rows are padded.
SimSetup shared_server() {
  SimSetup setup = constant_steps(1);
  setup.make_scheduler = policy<SchedulerRegistry>(
      "scheduler", "vllm_v1", "{budget_tokens: 4096, async_scheduling: false, max_num_seqs: 4096, largest_graph_tokens: 0}");
  setup.make_cost_model = linear_cost({.step = {}, .token = ps_of_ns(kStepMs * 1e6), .kv_token = {}, .cell = 1'000'000'000});
  setup.memory.num_blocks = 4096;
  return setup;
}

// Mean time in the system in ms, and mean of time / service.
Pair mean_sharing(const SimSetup& setup, const std::vector<TraceRequest>& requests) {
  Pair sum{};
  const std::vector<RequestRecord> records = counted(setup, requests);
  for (const RequestRecord& r : records) {
    const double time_ms = to_ms(r.last_token - r.arrival);
    sum[0] += time_ms;
    sum[1] += time_ms / (kStepMs * r.output_tokens);
  }
  const auto number = static_cast<double>(records.size());
  return {sum[0] / number, sum[1] / number};
}

constexpr double kSharedSteps = 2000;  // mean service, the same for each law

// Laws of service with that mean. The mean of 1 / service is at most 1 / least.
struct ServiceLaw {
  const char* name;
  double least;
  std::int32_t (*steps)(std::uint64_t seed, std::uint64_t request);
};
const std::array<ServiceLaw, 3> kServiceLaws = {
    ServiceLaw{"constant", 2000, [](std::uint64_t, std::uint64_t) { return 2000; }},
    ServiceLaw{"geometric", 200, [](std::uint64_t seed, std::uint64_t i) { return geometric(seed, i, kSharedSteps); }},
    ServiceLaw{"two-point", 500, [](std::uint64_t seed, std::uint64_t i) {  // squared coefficient of variation 5
                 return Draw{seed, Purpose::kOutputLength, i, 0, 0}.uniform() < 0.9 ? 500 : 15'500;
               }}};

// Kleinrock 1976, vol. 2, 4.4: T(x) = x / (1 - rho) for a service of x, and so both means follow from the mean service alone.
TEST(QueueingTheory, MeanTimesOfProcessorSharingDependOnTheMeanServiceAlone) {
  if (short_run()) GTEST_SKIP() << "millions of steps take too long with KVLAB_SHORT set";
  for (const ServiceLaw& law : kServiceLaws) {
    for (const double rho : {0.5, 0.8}) {
      const auto means = replicate_pairs(32, [&](std::uint64_t seed) {
        return mean_sharing(shared_server(),
                            poisson(seed, 12'000, kSharedSteps * kStepMs / rho, [&](std::uint64_t i) { return law.steps(seed, i); }));
      });
      const double step_ms = kStepMs * rho / (1 - rho);  // mean length of the step that an arrival finds
      EXPECT_NEAR(means[0].mean, kSharedSteps * kStepMs / (1 - rho), 4 * means[0].std_error + step_ms) << law.name << " at load " << rho;
      EXPECT_NEAR(means[1].mean, 1 / (1 - rho), 4 * means[1].std_error + step_ms / law.least) << law.name << " at load " << rho;
      EXPECT_LT(means[0].std_error, 0.05 * means[0].mean);
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
    const auto [records, summary] = serve(setup, requests);
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
