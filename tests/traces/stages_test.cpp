// Load as people drive it: stages of rates with pauses, ramps, bursts, and whole prompts that come again.
#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "tests/traces/trace_test_files.h"

namespace kvlab {
namespace {

std::string generated(const std::string& arrival, const std::string& more = "") {
  return "generate: {arrival: " + arrival + ", prompt_tokens: 100, output_tokens: 1" + more + "}";
}

// Arrivals in seconds.
std::vector<double> times_of(const std::string& yaml, std::uint64_t seed = 1) {
  std::vector<double> times;
  const auto trace = trace_of(yaml, seed);
  for (TraceRequest r; trace->next(r);) times.push_back(to_s(r.arrival - kStart));
  return times;
}

// 3 requests at 2/s in 1.5 s, 2.5 s of pause, then 4 at 4/s: by hand.
TEST(Stages, FollowEachOtherAndBurstsComeAgainAndAgain) {
  const std::string stages =
      "{stages: [{rate_per_s: 2, gaps: constant, for_s: 1.5, pause_s: 2.5}, {rate_per_s: 4, gaps: constant, for_s: 1}]}";
  EXPECT_EQ(times_of(generated(stages)), (std::vector<double>{0, 0.5, 1, 4, 4.25, 4.5, 4.75}));
  EXPECT_EQ(times_of(generated(stages, ", requests: 5")), (std::vector<double>{0, 0.5, 1, 4, 4.25}));
  EXPECT_EQ(times_of(generated("{bursts: {requests: 3, every_s: 2}}", ", requests: 7")), (std::vector<double>{0, 0, 0, 2, 2, 2, 4}));
}

TEST(Stages, AreTheClassesOfTheirRequests) {
  const auto classes = [](const std::string& stages) {
    std::string names;
    const auto trace = trace_of(generated(stages));
    for (TraceRequest r; trace->next(r);) names += std::string(r.facts->request_class.text()) + ";";
    return names;
  };
  const std::string one = "burst: 1, every_s: 9, for_s: 1";
  EXPECT_EQ(classes("{stages: [{" + one + "}, {name: peak, " + one + "}, {" + one + "}]}"), "stage 1;peak;stage 3;");
  EXPECT_EQ(classes("{stages: {warm up: {" + one + "}, peak: {" + one + "}}}"), "warm up;peak;") << "in the order of the file";
}

TEST(Stages, GiveTheirClassToTheRequestsOfAFile) {
  const TempFolder folder;
  const std::string file =
      folder.write("three.csv",
                   "arrival_ns,prompt_tokens,output_tokens,session,delay_ns,hash_tokens,hashes\n0,10,1,,,,\n1,11,1,,,,\n"
                   "2,12,1,,,,\n");
  const auto trace =
      trace_of("file: " + file + "\narrival: {stages: [{burst: 1, every_s: 1, for_s: 1}, {burst: 1, every_s: 1, for_s: 1}]}");
  TraceRequest r;
  ASSERT_TRUE(trace->next(r));
  EXPECT_EQ(r.facts->request_class.text(), "stage 1");
  ASSERT_TRUE(trace->next(r));
  EXPECT_EQ(std::tuple(r.prompt_tokens, to_s(r.arrival - kStart), r.facts->request_class.text()), std::tuple(11, 1, "stage 2"));
  EXPECT_FALSE(trace->next(r)) << "the trace ends with its stages";
}

TEST(Stages, LengthsThatAreNoNumbersAreToldTheirRange) {
  for (const char* text : {"0.5", "1e300", ".nan", "-.inf", "99999999999999999999", "''"}) {
    const std::string message = error_of([&] {
      InMemoryTrace(trace_of(std::string("generate: {requests: 1, arrival: {poisson: {rate_per_s: 1}}, prompt_tokens: ") + text +
                             ", output_tokens: 1}"));
    });
    EXPECT_NE(message.find("is no whole number from 1 to 1048576"), std::string::npos) << text << ": " << message;
    EXPECT_NE(message.find("'prompt_tokens' = "), std::string::npos) << message;
  }
}

// A rate that grows from 0 to 8/s over 4 s has t^2 requests up to t.
TEST(Stages, ARampFollowsTheIntegralOfItsRate) {
  const std::vector<double> times = times_of(generated("{stages: [{rate_per_s: 0, to_rate_per_s: 8, gaps: constant, for_s: 4}]}"));
  ASSERT_EQ(times.size(), 16U);
  for (std::size_t i = 0; i < times.size(); ++i) EXPECT_NEAR(times[i], std::sqrt(static_cast<double>(i)), 1e-8);
}

// From 1 to 9/s in 10 s: 50 requests; then 9/s.
TEST(Stages, ARampThatEndsStaysAtItsRate) {
  double early = 0, later = 0;
  for (std::uint64_t seed = 1; seed <= 40; ++seed)
    for (const double at : times_of(generated("{ramp: {from_per_s: 1, to_per_s: 9, over_s: 10}}", ", requests: 400"), seed))
      (at < 10 ? early : later) += at < 30 ? 1 : 0;
  EXPECT_NEAR(early / 40, 50, 4 * std::sqrt(50.0 / 40));
  EXPECT_NEAR(later / 40, 180, 4 * std::sqrt(180.0 / 40));
}

TEST(Stages, PoissonStagesHaveTheirRates) {
  double first = 0, second = 0, pause = 0;
  for (std::uint64_t seed = 1; seed <= 40; ++seed)
    for (const double at : times_of(generated("{stages: [{rate_per_s: 3, for_s: 20, pause_s: 30}, {rate_per_s: 15, for_s: 10}]}"), seed))
      (at < 20 ? first : at < 50 ? pause : second) += 1;
  EXPECT_NEAR(first / 40, 60, 4 * std::sqrt(60.0 / 40));
  EXPECT_EQ(pause, 0);
  EXPECT_NEAR(second / 40, 150, 4 * std::sqrt(150.0 / 40));
}

TEST(Stages, BadOnesAreRefused) {
  const auto refused = [](const std::string& arrival, const std::string& more = "") {
    return error_of([&] { times_of(generated(arrival, more)); });
  };
  EXPECT_NE(refused("{stages: [{for_s: 2}]}").find("needs either 'rate_per_s'"), std::string::npos);
  EXPECT_NE(refused("{stages: [{rate_per_s: 1, burst: 2, every_s: 1, for_s: 2}]}").find("needs either"), std::string::npos);
  EXPECT_NE(refused("{stages: [{rate_per_s: 1}]}").find("for_s"), std::string::npos);
  EXPECT_NE(refused("{stages: [{rate_per_s: 0, for_s: 2}]}").find("without arrivals"), std::string::npos);
  EXPECT_NE(refused("{stages: [{rate: 1, for_s: 2}]}").find("rate_per_s"), std::string::npos);
  EXPECT_THAT(refused("{stages: [{rate_per_s: 1e-9, for_s: 2}]}"),
              HasSubstr("no request arrives before the last stage ends: raise its 'rate_per_s'"));
  EXPECT_NE(refused("{stages: {}}").find("at least one stage"), std::string::npos);
  EXPECT_THAT(refused("{stages: [{name: a, rate_per_s: 1, for_s: 1}, {name: a, rate_per_s: 1, for_s: 1}]}"), HasSubstr("named 'a'"));
  EXPECT_NE(refused("{stages: [{name: 'a,b', rate_per_s: 1, for_s: 1}]}").find("cannot name a class"), std::string::npos);
  EXPECT_THAT(refused("{stages: [{rate_per_s: 1, for_s: 1}]}", ", classes: {a: {share_frac: 1}}"), HasSubstr("leave 'classes' out"));
  EXPECT_NE(refused("{ramp: {from_per_s: 1, to_per_s: 2, over_s: 1}}").find("requests"), std::string::npos) << "it never ends";
}

// 3 groups of 4 prompts: each round has every prompt once, and rounds are alike.
TEST(SharedPrefix, WholePromptsComeAgain) {
  const std::string shared = ", requests: 36, shared_prefix: {num_groups: 3, prompts_per_group: 4, tokens: 64}";
  const InMemoryTrace t(trace_of(
      "generate: {arrival: {constant: {rate_per_s: 1}}, prompt_tokens: {uniform: {min: 40, max: 200}}, output_tokens: 20" + shared + "}"));
  ASSERT_EQ(t.size(), 36U);
  std::map<std::uint64_t, std::set<std::uint64_t>> prompts;  // by prefix
  for (std::size_t i = 0; i < t.size(); ++i) {
    const TraceRequest r = t.at(i), again = t.at(i % 12);
    EXPECT_EQ(r.prompt_tokens, again.prompt_tokens);
    EXPECT_TRUE(std::ranges::equal(r.hashes, again.hashes));
    EXPECT_GE(r.prompt_tokens, 64 + 40);
    prompts[r.hashes[3]].insert(r.hashes[4]);
  }
  ASSERT_EQ(prompts.size(), 3U);
  for (const auto& [prefix, questions] : prompts) EXPECT_EQ(questions.size(), 4U);
}

TEST(SharedPrefix, PromptsThatComeAgainNeedNoSessionsAndNoPopularity) {
  const auto refused = [](const std::string& shared, const std::string& more) {
    return error_of([&] { times_of(generated("{constant: {rate_per_s: 1}}", ", requests: 4, shared_prefix: {" + shared + "}" + more)); });
  };
  const std::string some = "num_groups: 2, prompts_per_group: 2, tokens: 16";
  EXPECT_NE(refused(some, ", sessions: {turns: 2}").find("leave one out"), std::string::npos);
  EXPECT_NE(refused(some + ", zipf_s: 1", "").find("leave 'zipf_s' out"), std::string::npos);
  EXPECT_NE(refused("num_groups: 1000000000, prompts_per_group: 2, tokens: 16", "").find("10,000,000"), std::string::npos);
}

}  // namespace
}  // namespace kvlab
