#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "tests/traces/trace_test_files.h"
#include "traces/block_hashes.h"
#include "traces/trace_tools.h"

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

struct Moments {
  double mean = 0, cv = 0;
};

Moments moments(const std::vector<double>& values) {
  Moments m;
  for (const double v : values) m.mean += v / static_cast<double>(values.size());
  double squares = 0;
  for (const double v : values) squares += (v - m.mean) * (v - m.mean) / static_cast<double>(values.size() - 1);
  m.cv = std::sqrt(squares) / m.mean;
  return m;
}

std::vector<double> gaps_of(const std::string& arrival, int requests, std::uint64_t seed) {
  std::vector<double> gaps = times_of(generated(arrival, ", requests: " + std::to_string(requests)), seed);
  std::adjacent_difference(gaps.begin(), gaps.end(), gaps.begin());
  return gaps;
}

// Mean and cv over 32 seeds are within 4 standard errors, estimated from the seeds, of their theoretical values.
void expect_gaps(const std::string& arrival, double mean, double cv) {
  std::vector<double> means;
  std::vector<double> cvs;
  for (std::uint64_t seed = 1; seed <= 32; ++seed) {
    const Moments m = moments(gaps_of(arrival, 4000, seed));
    means.push_back(m.mean);
    cvs.push_back(m.cv);
  }
  const Moments of_means = moments(means);
  const Moments of_cvs = moments(cvs);
  EXPECT_NEAR(of_means.mean, mean, 4 * of_means.mean * of_means.cv / std::sqrt(32.0)) << arrival;
  // The cv of a sample is biased by about 1/n of itself times its kurtosis; the slack covers that.
  EXPECT_NEAR(of_cvs.mean, cv, 4 * of_cvs.mean * of_cvs.cv / std::sqrt(32.0) + 0.004 * cv) << arrival;
}

TEST(Arrivals, MeanAndCvOfGaps) {
  for (const double rate : {0.1, 5.5, 2000.0}) {
    const std::string r = "rate_per_s: " + std::to_string(rate);
    expect_gaps("{poisson: {" + r + "}}", 1 / rate, 1);
    expect_gaps("{gamma: {" + r + ", cv: 0.5}}", 1 / rate, 0.5);
    expect_gaps("{gamma: {" + r + ", cv: 2}}", 1 / rate, 2);
    const double shape = 0.7;
    const double first = std::tgamma(1 + 1 / shape);
    expect_gaps("{weibull: {" + r + ", shape: 0.7}}", 1 / rate, std::sqrt(std::tgamma(1 + 2 / shape) / (first * first) - 1));
  }
}

TEST(Arrivals, ConstantIsExact) {
  const InMemoryTrace trace(trace_of(generated("{constant: {rate_per_s: 3}}", ", requests: 1000")));
  EXPECT_EQ(trace.size(), 1000U);
  for (int i = 0; const Time at : each(trace, &TraceRequest::arrival)) EXPECT_EQ(ns(at), std::llround(i++ * 1e9 / 3.0));
}

TEST(Arrivals, OnOffHasTheMeanOfItsPhasesAndIsSilentBetweenBursts) {
  std::vector<double> rates;
  for (std::uint64_t seed = 1; seed <= 32; ++seed) {
    const std::vector<double> gaps = gaps_of("{on_off: {on_rate_per_s: 30, off_rate_per_s: 2, on_s: 1, off_s: 3}}", 20'000, seed);
    rates.push_back(1.0 / moments(gaps).mean);
  }
  const Moments m = moments(rates);
  EXPECT_NEAR(m.mean, (30.0 * 1 + 2 * 3) / 4, 4 * m.mean * m.cv / std::sqrt(32.0) + 0.02);
  Time at = kStart;
  for (const double gap : gaps_of("{on_off: {on_rate_per_s: 50, on_s: 1, off_s: 9, phases: constant}}", 5000, 7)) {
    at += from_seconds(gap);
    EXPECT_LE(std::fmod(to_s(at), 10.0), 1.0 + 1e-6);
  }
}

TEST(Arrivals, RecordedTimesScaleUpToTheLongestRun) {
  const InMemoryTrace t =
      trace_in_file("t.csv", "arrival_ns,prompt_tokens,output_tokens\n0,1,1\n1000,2,1\n3001,3,1\n", "arrival: {trace: {scale: 2}}");
  EXPECT_EQ(std::tuple(ns(t.at(1).arrival), ns(t.at(2).arrival)), std::tuple(500, 1501));
  const auto scaled_by = [&](const std::string& scale) {
    trace_in_file("t.csv", "arrival_ns,prompt_tokens,output_tokens\n0,1,1\n100000000000000,1,1\n",  // 1e5 s
                  "arrival: {trace: {scale: " + scale + "}}");
  };
  EXPECT_TRUE(error_of([&] { scaled_by("0.01"); }).starts_with("the trace runs past 106 days (9.2e6 s)"));
  EXPECT_EQ(error_of([&] { scaled_by("0.02"); }), "no error");
}

TEST(Arrivals, ClosedLoop) {
  const auto trace = trace_of(generated("{closed_loop: {concurrency: 7, think_time: {constant: {s: 2}}}}", ", requests: 3"));
  EXPECT_EQ(trace->closed_loop().concurrency, 7);
  EXPECT_EQ(to_s(trace->closed_loop().think_time(5)), 2);
  TraceRequest r;
  ASSERT_TRUE(trace->next(r));
  EXPECT_EQ(r.arrival, kStart);
  EXPECT_EQ(trace_of(generated("{poisson: {rate_per_s: 1}}", ", requests: 3"))->closed_loop().concurrency, 0);
}

std::vector<double> prompts_of(const std::string& distribution) {
  const auto trace = trace_of(
      "generate: {requests: 50000, arrival: {constant: {rate_per_s: 1000}}, prompt_tokens: " + distribution + ", output_tokens: 1}", 3);
  std::vector<double> lengths;
  for (TraceRequest r; trace->next(r);) lengths.push_back(r.prompt_tokens);
  return lengths;
}

TEST(Lengths, MeansOfDistributions) {
  const auto near = [](const std::string& distribution, double mean) {
    const Moments m = moments(prompts_of(distribution));
    EXPECT_NEAR(m.mean, mean, 4 * m.mean * m.cv / std::sqrt(50'000.0) + 1e-9) << distribution;
  };
  near("512", 512);
  near("{fixed: {value: 7}}", 7);
  near("{uniform: {min: 1, max: 100}}", 50.5);
  near("{lognormal: {median: 1020, mean: 1155}}", 1155);
  near("{lognormal: {median: 1000, sigma: 0.5}}", 1000 * std::exp(0.125));
  near("{geometric: {mean: 4.5}}", 4.5);
  near("{zipf: {s: 0, max: 9}}", 5);
  near("{zipf: {s: 1, min: 11, max: 13}}", 10 + 3 / (1 + 1 / 2.0 + 1 / 3.0));  // sum k/k over sum 1/k
}

TEST(Lengths, LimitsHold) {
  EXPECT_THAT(prompts_of("{lognormal: {median: 100, sigma: 3, min: 50, max: 200}}"),
              testing::Each(testing::AllOf(testing::Ge(50), testing::Le(200))));
}

TEST(Lengths, FromAFileInPairs) {
  const TempFolder folder;
  const std::string path = folder.write("t.csv", "arrival_ns,prompt_tokens,output_tokens\n0,10,1\n1,20,2\n2,40,4\n3,40,4\n");
  const auto trace = trace_of("generate: {requests: 4000, arrival: {constant: {rate_per_s: 1}}, prompt_tokens: {trace: {file: " + path +
                              "}}, output_tokens: {trace: {file: " + path + ", paired: true}}}");
  double sum = 0;
  for (TraceRequest r; trace->next(r);) {
    EXPECT_EQ(r.prompt_tokens, 10 * r.output_tokens);
    sum += r.prompt_tokens;
  }
  EXPECT_NEAR(sum / 4000, 27.5, 4 * 13 / std::sqrt(4000.0));
}

TEST(Generator, SameSeedSameRequests) {
  const std::string yaml =
      "generate: {requests: 500, arrival: {gamma: {rate_per_s: 3, cv: 2}}, prompt_tokens: {lognormal: {median: 90, sigma: 1}},"
      " output_tokens: {uniform: {min: 1, max: 50}}, sessions: {turns: {geometric: {mean: 3}}, think_time: {exponential: {mean_s: 5}}},"
      " shared_prefix: {num_groups: 4, tokens: 100, zipf_s: 1}}";
  const InMemoryTrace a(trace_of(yaml, 5));
  const InMemoryTrace b(trace_of(yaml, 5));
  const InMemoryTrace c(trace_of(yaml, 6));
  ASSERT_EQ(a.size(), 500U);
  std::size_t differing = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(std::tuple(a.at(i).arrival, a.at(i).delay), std::tuple(b.at(i).arrival, b.at(i).delay));
    EXPECT_EQ(a.at(i).prompt_tokens, b.at(i).prompt_tokens);
    EXPECT_TRUE(std::ranges::equal(a.at(i).hashes, b.at(i).hashes));
    differing += a.at(i).prompt_tokens != c.at(i).prompt_tokens ? 1 : 0;
  }
  EXPECT_GT(differing, 400U);
}

TEST(Generator, TurnsGrowAndShareWhatWasSaidBefore) {
  const InMemoryTrace t(
      trace_of("generate: {requests: 300, arrival: {poisson: {rate_per_s: 1}}, prompt_tokens: {uniform: {min: 20, max: 90}}, "
               "output_tokens: {uniform: {min: 10, max: 60}},"
               " sessions: {turns: {uniform: {min: 1, max: 6}}, new_tokens: {uniform: {min: 1, max: 30}}, think_time: {constant: {s: 3}}, "
               "max_context_tokens: 400}, block_tokens: 8}"));
  std::set<std::uint64_t> of_other_sessions;
  std::size_t follow_ups = 0;
  for (std::size_t i = 0; i < t.size(); ++i) {
    const TraceRequest r = t.at(i);
    EXPECT_LE(r.prompt_tokens + r.output_tokens, 400);
    EXPECT_EQ(r.hashes.size(), static_cast<std::size_t>((r.prompt_tokens + r.output_tokens) / 8));
    if (r.is_follow_up) {
      ++follow_ups;
      const TraceRequest before = t.at(i - 1);
      EXPECT_EQ(std::tuple(r.session, to_s(r.delay)), std::tuple(before.session, 3));
      EXPECT_GT(r.prompt_tokens, before.prompt_tokens + before.output_tokens);
      ASSERT_GE(r.hashes.size(), before.hashes.size());
      EXPECT_TRUE(std::ranges::equal(before.hashes, r.hashes.first(before.hashes.size())));
    } else {
      for (const std::uint64_t hash : r.hashes) EXPECT_FALSE(of_other_sessions.contains(hash));
    }
    of_other_sessions.insert(r.hashes.begin(), r.hashes.end());
  }
  EXPECT_GT(follow_ups, 100U);
}

TEST(Generator, GroupsShareTheirPrefixAndNothingElse) {
  const InMemoryTrace t(
      trace_of("generate: {requests: 400, arrival: {poisson: {rate_per_s: 1}}, prompt_tokens: 50, output_tokens: 20,"
               " shared_prefix: {num_groups: 2, tokens: {uniform: {min: 33, max: 100}}, share_frac: 0.75, zipf_s: 1}, block_tokens: 16}"));
  std::map<std::uint64_t, int> first_blocks;
  for (std::size_t i = 0; i < t.size(); ++i) {
    const TraceRequest r = t.at(i);
    EXPECT_EQ(r.session, -1);
    ++first_blocks[r.hashes[0]];
    std::size_t shared = 0;  // with the request before, where both have the same prefix
    if (i > 0 && t.at(i - 1).hashes[0] == r.hashes[0]) {
      EXPECT_EQ(r.prompt_tokens, t.at(i - 1).prompt_tokens);
      while (r.hashes[shared] == t.at(i - 1).hashes[shared]) ++shared;
      EXPECT_EQ(shared, static_cast<std::size_t>((r.prompt_tokens - 50) / 16));
    }
  }
  std::vector<int> groups;
  int alone = 0;
  for (const auto& [hash, times] : first_blocks) {
    if (times > 1)
      groups.push_back(times);
    else
      ++alone;
  }
  ASSERT_EQ(groups.size(), 2U);
  EXPECT_NEAR(alone, 100, 4 * std::sqrt(400 * 0.25 * 0.75));
  std::ranges::sort(groups);
  EXPECT_NEAR(groups[1] / (groups[0] + groups[1] + 0.0), 2.0 / 3, 4 * std::sqrt(2.0 / 9 / 300));
}

TEST(Generator, RefusesWhatItCannotRead) {
  const auto error = [](const std::string& yaml) { return error_of([&] { trace_of(yaml); }); };
  EXPECT_EQ(error("{}"), "<test>:1:1: 'trace' needs either 'file: PATH' or 'generate: {...}'");
  EXPECT_EQ(error("generate: {requests: 0, arrival: {poisson: {rate_per_s: 1}}}"),
            "<test>:1:22: 'requests' = 0 is outside [1, 1099511627776]");
  EXPECT_EQ(error("generate: {requests: 1, arrival: {posson: {rate_per_s: 1}}}"),
            "<test>:1:43: unknown arrival process 'posson'; did you mean 'poisson'?");
  EXPECT_EQ(error("generate: {requests: 1, arrival: {poisson: {rate: 1}}}"),
            "<test>:1:45: arrival 'poisson' needs 'rate_per_s'; found 'rate': misspelled?");
  EXPECT_EQ(error("generate: {requests: 1, arrival: {poisson: {rate_per_s: 1}}, prompt_tokens: 0, output_tokens: 1}"),
            "<test>:1:77: 'prompt_tokens' = 0 is outside [1, 1048576]");
  EXPECT_EQ(error("generate: {requests: 1, arrival: {poisson: {rate_per_s: 1}}, prompt_tokens: 1, output_token: 1}"),
            "<test>:1:80: generate needs 'output_tokens'; found 'output_token': misspelled?");
  EXPECT_EQ(error("generate: {requests: 1, arrival: trace, prompt_tokens: 1, output_tokens: 1}"),
            "<test>:1:34: 'arrival: trace' needs 'file': generated requests have no recorded arrivals");
  EXPECT_EQ(
      error_of([] {
        InMemoryTrace(trace_of("generate: {requests: 100, arrival: {poisson: {rate_per_s: 1.0e-6}}, prompt_tokens: 1, output_tokens: 1}"));
      }),
      "the trace runs past 106 days (9.2e6 s), the longest run there is: ask for fewer requests or a higher rate_per_s, take a part of a "
      "file with offset and limit_requests, speed it up with arrival: {trace: {scale: ...}}, or end the run with stop: {after_s: ...}");
  EXPECT_THAT(error("generate: {requests: 1, arrival: {poisson: {rate_per_s: 1}}, prompt_tokens: 1, output_tokens: 1, block_tokens: 4}"),
              HasSubstr("block_tokens"))
      << "without anything shared there are no hashes";
}

// Load as people drive it: stages of rates with pauses, ramps, bursts, and whole prompts that come again.

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
    EXPECT_THAT(message, has_all({"is no whole number from 1 to 1048576", "'prompt_tokens' = "})) << text;
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
