#include <cmath>
#include <set>

#include "tests/traces/trace_test_files.h"
#include "traces/block_hashes.h"
#include "traces/trace_tools.h"

namespace kvlab {
namespace {

struct Moments {
  double mean = 0, cv = 0;
  std::size_t count = 0;
};

Moments moments(const std::vector<double>& values) {
  Moments m;
  m.count = values.size();
  for (const double v : values) m.mean += v / static_cast<double>(values.size());
  double squares = 0;
  for (const double v : values) squares += (v - m.mean) * (v - m.mean) / static_cast<double>(values.size() - 1);
  m.cv = std::sqrt(squares) / m.mean;
  return m;
}

std::vector<double> gaps_of(const std::string& arrival, int requests, std::uint64_t seed) {
  const auto trace = trace_of(
      "generate: {requests: " + std::to_string(requests) + ", arrival: " + arrival + ", prompt_tokens: 1, output_tokens: 1}", seed);
  std::vector<double> gaps;
  Time before = kStart;
  for (TraceRequest r; trace->next(r); before = r.arrival) gaps.push_back(to_s(r.arrival - before));
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
  const auto trace = trace_of("generate: {requests: 1000, arrival: {constant: {rate_per_s: 3}}, prompt_tokens: 1, output_tokens: 1}");
  TraceRequest r;
  for (int i = 0; i < 1000; ++i) {
    ASSERT_TRUE(trace->next(r));
    EXPECT_EQ(ns(r.arrival), std::llround(i * 1e9 / 3.0));
  }
  EXPECT_FALSE(trace->next(r));
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

TEST(Arrivals, RecordedTimesScale) {
  const InMemoryTrace t =
      trace_in_file("t.csv", "arrival_ns,prompt_tokens,output_tokens\n0,1,1\n1000,2,1\n3001,3,1\n", "arrival: {trace: {scale: 2}}");
  EXPECT_EQ(std::tuple(ns(t.at(1).arrival), ns(t.at(2).arrival)), std::tuple(500, 1501));
}

TEST(Arrivals, ScaledTimesBeyondTheLongestRunAreRefused) {
  const auto scaled_by = [&](const std::string& scale) {
    trace_in_file("t.csv", "arrival_ns,prompt_tokens,output_tokens\n0,1,1\n100000000000000,1,1\n",  // 1e5 s
                  "arrival: {trace: {scale: " + scale + "}}");
  };
  EXPECT_TRUE(error_of([&] { scaled_by("0.01"); }).starts_with("the trace runs past 106 days (9.2e6 s)"));
  EXPECT_EQ(error_of([&] { scaled_by("0.02"); }), "no error");
}

TEST(Arrivals, ClosedLoop) {
  const auto trace = trace_of(
      "generate: {requests: 3, arrival: {closed_loop: {concurrency: 7, think_time: {constant: {s: 2}}}}, prompt_tokens: 1, output_tokens: "
      "1}");
  EXPECT_EQ(trace->closed_loop().concurrency, 7);
  EXPECT_EQ(to_s(trace->closed_loop().think_time(5)), 2);
  TraceRequest r;
  ASSERT_TRUE(trace->next(r));
  EXPECT_EQ(r.arrival, kStart);
  EXPECT_EQ(trace_of("generate: {requests: 3, arrival: {poisson: {rate_per_s: 1}}, prompt_tokens: 1, output_tokens: 1}")
                ->closed_loop()
                .concurrency,
            0);
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
  for (const double v : prompts_of("{lognormal: {median: 100, sigma: 3, min: 50, max: 200}}")) {
    EXPECT_GE(v, 50);
    EXPECT_LE(v, 200);
  }
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

}  // namespace
}  // namespace kvlab
