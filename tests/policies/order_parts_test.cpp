// Andes' gains and its choice of a batch, against numbers by hand.
#include <gtest/gtest.h>

#include <cmath>
#include <deque>
#include <fstream>
#include <functional>

#include "base/config/params.h"
#include "base/random.h"
#include "policies/order/batch_search.h"
#include "policies/order/job_types.h"
#include "policies/predictor/predictor.h"
#include "tests/error_of.h"

namespace kvlab {
namespace {

// A token per nanosecond is read, from now on; the horizon is 10 ns, so the area below the line is 50.
TEST(GainOfServing, ByHand) {
  EXPECT_DOUBLE_EQ(gain_of_serving({0, 1, 0}, 10, 1), 1) << "all of the line where tokens come in time";
  EXPECT_DOUBLE_EQ(gain_of_serving({0, 1, 0}, 10, 2), 0.5) << "half as fast";
  // Two tokens are ahead of the line: until 2 nothing is gained; with a token every 2 ns the buffer is used up at 4.
  EXPECT_DOUBLE_EQ(gain_of_serving({0, 1, 2}, 10, 1), 0.64);
  EXPECT_DOUBLE_EQ(gain_of_serving({0, 1, 2}, 10, 2), (4 + 0.5 * (100 - 16)) / 100);
  EXPECT_EQ(gain_of_serving({0, 1, 10}, 10, 1), 0) << "the buffer lasts";
  EXPECT_DOUBLE_EQ(gain_of_serving({-10, 1, 0}, 10, 1), 0.25) << "half of the line's length is lost already";
  EXPECT_DOUBLE_EQ(gain_of_serving({5, 1, 0}, 10, 1), 1);
}
// The closed form against the sum of min(t / step, (t - lag) / token).
TEST(GainOfServing, IsTheIntegral) {
  for (const double step : {0.5, 1.0, 1.3, 3.0, 20.0})
    for (const double begins : {-7.0, 0.0, 2.5}) {
      const Reader reader{begins, 1.1, 3};
      constexpr int kParts = 200'000;
      double area = 0;
      for (int i = 0; i < kParts; ++i) {
        const double t = 10 * (i + 0.5) / kParts;
        if (t > reader.lag_begins()) area += std::min(t / step, (t - reader.lag_begins()) / 1.1) * 10 / kParts;
      }
      const double whole = (10 - begins) * (10 - begins) / 2.2;
      EXPECT_NEAR(gain_of_serving(reader, 10, step), area / whole, 1e-6) << step << " " << begins;
    }
}

BatchCandidate candidate(std::int64_t delivered, std::int64_t context, std::int64_t blocks) {
  return {{0, 1, delivered}, context, blocks, false};
}
const auto kFast = [](std::int32_t, std::int64_t) { return 0.5; };

std::string chosen(std::vector<BatchCandidate> all, std::vector<std::int32_t> sizes, std::int64_t blocks,
                   const std::function<double(std::int32_t, std::int64_t)>& step) {
  const std::size_t size = choose_batch(all, sizes, blocks, 10, step);
  std::string text;
  for (const BatchCandidate& c : all) text += c.is_chosen ? "1" : "0";
  EXPECT_EQ(static_cast<std::size_t>(std::count(text.begin(), text.end(), '1')), size);
  return text;
}

TEST(ChooseBatch, MostGainPerContextUntilMemoryIsFull) {
  const std::vector<BatchCandidate> all{candidate(0, 100, 6), candidate(0, 10, 1), candidate(0, 50, 3)};
  EXPECT_EQ(chosen(all, {1, 2, 3}, 4, kFast), "011");
  EXPECT_EQ(chosen(all, {1, 2, 3}, 10, kFast), "111");
  EXPECT_EQ(chosen(all, {1}, 10, kFast), "010");
}
// A reader with a full buffer gains nothing and gives way, though its context is short.
TEST(ChooseBatch, WhoIsAheadGivesWay) { EXPECT_EQ(chosen({candidate(10, 1, 2), candidate(0, 100, 2)}, {1, 2}, 3, kFast), "01"); }

// A step takes b ns squared: of three readers one has gain 1, two 2 x 0.25, three 3 x 1/9.
TEST(ChooseBatch, FewerWhereLargerBatchesAreTooSlow) {
  const std::vector<BatchCandidate> all{candidate(0, 10, 1), candidate(0, 10, 1), candidate(0, 10, 1)};
  EXPECT_EQ(chosen(all, {1, 2, 3}, 100, [](std::int32_t b, std::int64_t) { return 1.0 * b * b; }), "100");
  EXPECT_EQ(chosen(all, {1, 2, 3}, 100, [](std::int32_t b, std::int64_t) { return 1 + 0.1 * b; }), "111");
}
TEST(ChooseBatch, SomebodyIsServedThoughNobodyGains) {
  EXPECT_EQ(chosen({candidate(10, 1, 2), candidate(10, 1, 2)}, {1, 2}, 4, kFast), "11");
}
TEST(ChooseBatch, NobodyWithoutMemory) { EXPECT_EQ(chosen({candidate(0, 1, 2)}, {1}, 1, kFast), "0"); }

TEST(BatchSizes, AscendToTheMost) {
  EXPECT_EQ(batch_sizes(12, 4), (std::vector<std::int32_t>{3, 6, 9, 12}));
  EXPECT_EQ(batch_sizes(2, 4), (std::vector<std::int32_t>{1, 2}));
  EXPECT_EQ(batch_sizes(1, 1), (std::vector<std::int32_t>{1}));
}

TEST(ObservedSteps, FindsALine) {
  ObservedSteps steps;
  EXPECT_TRUE(steps.is_empty());
  steps.add(4, 140);
  EXPECT_DOUBLE_EQ(steps.step_ns(50), 140) << "one size: its mean";
  for (const int b : {8, 16, 4, 32, 8}) steps.add(b, 100 + 10 * b);
  EXPECT_NEAR(steps.step_ns(64), 740, 1e-6);
  EXPECT_GE(steps.step_ns(0), 50);
}

// Job types of unknown mean length on one server, all jobs there at the start, as in Merlis et al. 2023 (ICML): the sum of flow times
// beyond that of a server that knows the means and serves the shortest type first.

using Rule = JobTypes::Rule;

using Jobs = std::vector<std::deque<std::int64_t>>;  // by type

Jobs draw_jobs(const std::vector<double>& means, std::uint64_t count, std::uint64_t seed) {
  Jobs jobs;
  for (std::size_t type = 0; type < means.size(); ++type) {
    auto& left = jobs.emplace_back();
    for (std::uint64_t i = 0; i < count; ++i)
      left.push_back(1 + static_cast<std::int64_t>(Draw{seed, Purpose::kTest, i, type}.exponential(means[type])));
  }
  return jobs;
}

// The means ascend: type after type.
double flow_time_of_known_means(const Jobs& jobs) {
  double now = 0, sum = 0;
  for (const auto& left : jobs)
    for (const std::int64_t length : left) sum += now += static_cast<double>(length);
  return sum;
}

double flow_time(Rule rule, std::int64_t quantum, const Jobs& jobs) {
  JobTypes types(rule, 1, quantum);
  Jobs left = jobs, length = jobs;
  for (std::uint32_t type = 0; type < left.size(); ++type) {
    types.add_type();
    for (std::size_t i = 0; i < left[type].size(); ++i) {
      types.arrive();
      types.enter_queue(type);
    }
  }
  double now = 0, sum = 0;
  std::vector<std::uint32_t> order;
  for (types.rank(order); !order.empty(); types.rank(order)) {
    const std::uint32_t type = order.front();
    std::int64_t& job = left[type].front();
    types.leave_queue(type);
    types.run(type, job == length[type].front());
    const std::int64_t served = quantum > 0 ? std::min(quantum, job) : job;
    job -= served;
    now += static_cast<double>(served);
    types.serve(type, served);
    types.stop(type);
    if (job > 0) {
      types.enter_queue(type);
      continue;
    }
    types.end(type, length[type].front());
    left[type].pop_front();
    length[type].pop_front();
    sum += now;
  }
  return sum;
}

// Mean over seeds of the flow time beyond that of known means, as a share of it.
double excess(Rule rule, std::int64_t quantum, const std::vector<double>& means, std::uint64_t count) {
  constexpr std::uint64_t kSeeds = 10;
  double known = 0, ours = 0;
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const Jobs jobs = draw_jobs(means, count, seed);
    known += flow_time_of_known_means(jobs);
    ours += flow_time(rule, quantum, jobs);
  }
  return ours / known - 1;
}

constexpr std::int64_t kQuantum = 4;

// The paper's statement: jobs of a type far longer than the others are found out in short quanta, without paying for whole jobs.
TEST(JobTypes, PreemptionSavesMostWhereMeansDifferStrongly) {
  const std::vector<double> means{20, 4000};
  for (const Rule rule : {Rule::kEtc, Rule::kUcb}) {
    const double whole = excess(rule, 0, means, 100), in_turns = excess(rule, kQuantum, means, 100);
    EXPECT_GT(whole, 0.01);
    EXPECT_LT(in_turns, whole / 4);
  }
}

TEST(JobTypes, ParityWhereMeansAreEqual) {
  const std::vector<double> means{200, 200};
  for (const Rule rule : {Rule::kEtc, Rule::kUcb}) EXPECT_NEAR(excess(rule, 0, means, 100), excess(rule, kQuantum, means, 100), 0.05);
}

// Equal short types are not told apart, and need not be: the long one still waits.
TEST(JobTypes, ALongTypeIsLeftAloneBesideEqualShortOnes) { EXPECT_LT(excess(Rule::kEtc, 0, {20, 20, 20, 2000}, 100), 1); }

TEST(JobTypes, TheExcessShrinksWithTheNumberOfJobs) {
  const std::vector<double> means{20, 100};
  for (const Rule rule : {Rule::kEtc, Rule::kUcb})
    for (const std::int64_t quantum : {std::int64_t{0}, kQuantum}) {
      const double few = excess(rule, quantum, means, 20), many = excess(rule, quantum, means, 400);
      EXPECT_GT(few, many) << quantum;
      EXPECT_GT(many, -0.01) << "nothing beats the known means by more than chance";
    }
}

// Bounds by hand: 2 jobs seen, 1 ended of 30 in all, w = sqrt(2 ln 2) = 1.177: 30 / 2.177 below; above it is not known.
TEST(JobTypes, BoundsAreThoseOfTheFormula) {
  JobTypes types(Rule::kUcb, 1, 0);
  types.add_type();
  types.arrive();
  types.arrive();
  EXPECT_EQ(types.lower(0), 0);
  types.end(0, 30);
  EXPECT_NEAR(types.lower(0), 30 / (1 + std::sqrt(2 * std::log(2.0))), 1e-12);
  EXPECT_EQ(types.upper(0), std::numeric_limits<double>::infinity());
  for (int i = 0; i < 3; ++i) types.end(0, 30);
  EXPECT_NEAR(types.upper(0), 120 / (4 - std::sqrt(8 * std::log(2.0))), 1e-12);
}

// Without a scale a type of which no job has ended has no width: the bound is 0 whatever was served, and not infinite or undefined.
TEST(JobTypes, WithoutAScaleNothingIsKnownBeforeAJobEnds) {
  for (const Rule rule : {Rule::kEtc, Rule::kUcb}) {
    JobTypes types(rule, 0, 8);
    for (int i = 0; i < 2; ++i) types.enter_queue(types.add_type());
    EXPECT_EQ(types.lower(0), 0);
    types.serve(0, 8);
    EXPECT_EQ(types.lower(0), 0);
    EXPECT_TRUE(types.precedes(1, 0));
    EXPECT_FALSE(types.precedes(0, 1));
    types.end(0, 8);
    EXPECT_EQ(types.lower(0), 8);
  }
}

// Only service of whole turns can be overtaken, and a quantum below one token of output would mean nothing.
TEST(JobTypes, NobodyIsOvertakenBeforeItsTurnEnds) {
  JobTypes types(Rule::kEtc, 1, 8);
  for (int i = 0; i < 2; ++i) types.enter_queue(types.add_type());
  types.serve(0, 8);
  EXPECT_FALSE(types.overtakes(1, 0, 7));
  EXPECT_TRUE(types.overtakes(1, 0, 8));
  EXPECT_FALSE(types.overtakes(0, 0, 8));
  JobTypes whole(Rule::kEtc, 1, 0);
  for (int i = 0; i < 2; ++i) whole.enter_queue(whole.add_type());
  EXPECT_FALSE(whole.overtakes(1, 0, 1000));
}

std::unique_ptr<Predictor> predictor(const std::string& name, const std::string& params, std::uint64_t seed = 1) {
  Params p = Params::from_text(params);
  std::unique_ptr<Predictor> made = PredictorRegistry::make(name, p, "predictor");
  made->set_seed(seed);
  return made;
}

Request request(std::uint64_t number, std::int32_t output) {
  Request r;
  r.number = number;
  r.output_limit = output;
  return r;
}

TEST(Predictor, ExactKnows) { EXPECT_EQ(predictor("exact", "{}")->output_tokens(request(0, 77)), 77); }

// 10 buckets of 100: the upper end of the true one.
TEST(Predictor, BucketsRoundUp) {
  const auto p = predictor("bucket", "{max_output_tokens: 1000}");
  EXPECT_EQ(p->output_tokens(request(0, 1)), 100);
  EXPECT_EQ(p->output_tokens(request(0, 100)), 100);
  EXPECT_EQ(p->output_tokens(request(0, 101)), 200);
  EXPECT_EQ(p->output_tokens(request(0, 5000)), 1000);
}

constexpr int kDraws = 20'000;

// Of so many requests with this output, those with this estimate.
int estimated(Predictor& p, std::int32_t output, std::int32_t estimate) {
  int found = 0;
  for (int i = 0; i < kDraws; ++i) found += p.output_tokens(request(static_cast<std::uint64_t>(i), output)) == estimate ? 1 : 0;
  return found;
}

TEST(Predictor, BucketsAreRightAsOftenAsSaid) {
  const auto p = predictor("bucket", "{max_output_tokens: 1000, accuracy_frac: 0.8}");
  EXPECT_NEAR(estimated(*p, 450, 500), 0.8 * kDraws, 4 * std::sqrt(0.16 * kDraws));
  EXPECT_NEAR(estimated(*p, 450, 100), 0.2 / 9 * kDraws, 4 * std::sqrt(0.022 * kDraws)) << "the others are alike";
}

TEST(Predictor, LognormalErrorsHaveTheirDeviation) {
  const auto p = predictor("lognormal", "{sigma: 0.5, bias: 2}");
  double sum = 0, squares = 0;
  for (int i = 0; i < kDraws; ++i) {
    const double x = std::log(p->output_tokens(request(static_cast<std::uint64_t>(i), 100'000)) / 100'000.0);
    sum += x;
    squares += x * x;
  }
  const double mean = sum / kDraws;
  EXPECT_NEAR(mean, std::log(2.0), 4 * 0.5 / std::sqrt(kDraws));
  EXPECT_NEAR(std::sqrt(squares / kDraws - mean * mean), 0.5, 0.02);
}

// A draw depends on the request's number and the seed alone.
TEST(Predictor, DrawsAreKeyedByTheRequest) {
  const auto a = predictor("lognormal", "{sigma: 1}"), b = predictor("lognormal", "{sigma: 1}"),
             other = predictor("lognormal", "{sigma: 1}", 2);
  a->output_tokens(request(5, 1000));
  EXPECT_EQ(a->output_tokens(request(7, 1000)), b->output_tokens(request(7, 1000)));
  int same = 0;
  for (std::uint64_t i = 0; i < 50; ++i) same += b->output_tokens(request(i, 1000)) == other->output_tokens(request(i, 1000)) ? 1 : 0;
  EXPECT_LT(same, 5);
}

std::string file_of(const std::string& name, const std::string& text) {
  const std::string path = ::testing::TempDir() + "predictor_" + name;
  std::ofstream(path) << text;
  return path;
}

TEST(Predictor, ConfusionDrawsFromTheRowOfTheTrueBucket) {
  const auto p = predictor("confusion", "{file: " + file_of("c.csv", "output_tokens,10,100\n10,1,0\n100,0.25,0.75\n") + "}");
  EXPECT_EQ(estimated(*p, 10, 10), kDraws);
  EXPECT_NEAR(estimated(*p, 5000, 10), 0.25 * kDraws, 4 * std::sqrt(0.1875 * kDraws));
}

TEST(Predictor, ConfusionRefusesARowThatIsNoDistribution) {
  const std::string file = file_of("bad.csv", "output_tokens,10,100\n10,1,0\n100,0.25,0.7\n");
  EXPECT_NE(error_of([&] { predictor("confusion", "{file: " + file + "}"); }).find("bad.csv:3: the probabilities"), std::string::npos);
}

TEST(Predictor, RecordedNamesARequestWithoutARow) {
  const auto p = predictor("recorded", "{file: " + file_of("r.csv", "request,predicted_output\n0,7\n2,9\n") + "}");
  EXPECT_EQ(p->output_tokens(request(2, 1)), 9);
  EXPECT_NE(error_of([&] { p->output_tokens(request(1, 1)); }).find("no row for request 1"), std::string::npos);
  EXPECT_NE(error_of([&] { p->output_tokens(request(7, 1)); }).find("no row for request 1 "), std::string::npos) << "the first";
  const std::string twice = file_of("t.csv", "request,predicted_output\n0,7\n0,9\n");
  EXPECT_NE(error_of([&] { predictor("recorded", "{file: " + twice + "}"); }).find("t.csv:3: request 0 has two rows"), std::string::npos);
}

// Errors of a file begin with the place that names it, when it is read and when a request is missing.
TEST(Predictor, ErrorsOfFilesSayWhereTheyAreNamed) {
  const std::string two = file_of("two.csv", "request,predicted_output\n0,7\n"),
                    bad = file_of("bad.csv", "request,predicted_output\n0,x\n");
  const std::string place = "<test>:1:8: ";
  const auto p = predictor("recorded", "{file: " + two + "}");
  EXPECT_EQ(error_of([&] { p->output_tokens(request(3, 1)); }).find(place + two + ": no row for request 1"), 0U);
  EXPECT_EQ(error_of([&] { predictor("recorded", "{file: " + bad + "}"); }).find(place + bad + ":2: 'x'"), 0U);
  EXPECT_EQ(error_of([&] { predictor("recorded", "{file: " + two + ".gone}"); }).find(place), 0U);
  EXPECT_EQ(error_of([&] { predictor("confusion", "{file: " + two + "}"); }).find(place + two + ":1: "), 0U);
}

// The mean of the last two of each client.
TEST(Predictor, HistoryAveragesTheLatestOfAClient) {
  const auto p = predictor("history", "{last: 2, first_tokens: 50}");
  RequestFacts facts;
  facts.client = 3;
  Request r = request(0, 1);
  r.facts = &facts;
  EXPECT_EQ(p->output_tokens(r), 50);
  for (const int output : {100, 10, 21}) {
    r.output_tokens = output;
    p->on_finish(r);
  }
  EXPECT_EQ(p->output_tokens(r), 16) << "(10 + 21) / 2, rounded";
  facts.client = 4;
  EXPECT_EQ(p->output_tokens(r), 50);
}

}  // namespace
}  // namespace kvlab
