// Job types of unknown mean length on one server, all jobs there at the start, as in Merlis et al. 2023 (ICML): the sum of flow times
// beyond that of a server that knows the means and serves the shortest type first.
#include "policies/order/job_types.h"

#include <gtest/gtest.h>

#include <deque>
#include <numeric>

#include "base/random.h"

namespace kvlab {
namespace {

using Rule = JobTypes::Rule;

struct Jobs {
  std::vector<std::deque<std::int64_t>> left;  // by type
};

Jobs draw_jobs(const std::vector<double>& means, std::uint64_t count, std::uint64_t seed) {
  Jobs jobs;
  for (std::size_t type = 0; type < means.size(); ++type) {
    auto& left = jobs.left.emplace_back();
    for (std::uint64_t i = 0; i < count; ++i)
      left.push_back(1 + static_cast<std::int64_t>(Draw{seed, Purpose::kTest, i, type}.exponential(means[type])));
  }
  return jobs;
}

// The means ascend: type after type.
double flow_time_of_known_means(const Jobs& jobs) {
  double now = 0, sum = 0;
  for (const auto& left : jobs.left)
    for (const std::int64_t length : left) sum += now += static_cast<double>(length);
  return sum;
}

double flow_time(Rule rule, std::int64_t quantum, const Jobs& jobs) {
  JobTypes types(rule, 1, quantum);
  std::vector<std::deque<std::int64_t>> left = jobs.left, length = jobs.left;
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
  for (const Rule rule : {Rule::kEtc, Rule::kUcb}) {
    for (const std::int64_t quantum : {std::int64_t{0}, kQuantum}) {
      const double few = excess(rule, quantum, means, 20), many = excess(rule, quantum, means, 400);
      EXPECT_GT(few, many) << quantum;
      EXPECT_GT(many, -0.01) << "nothing beats the known means by more than chance";
    }
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

}  // namespace
}  // namespace kvlab
