#include "policies/predictor/predictor.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "base/config/params.h"
#include "tests/error_of.h"

namespace kvlab {
namespace {

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

TEST(Predictor, BucketsAreRightAsOftenAsSaid) {
  const auto p = predictor("bucket", "{max_output_tokens: 1000, accuracy_frac: 0.8}");
  constexpr int kDraws = 20'000;
  int right = 0, lowest = 0;
  for (int i = 0; i < kDraws; ++i) {
    const std::int32_t estimate = p->output_tokens(request(static_cast<std::uint64_t>(i), 450));
    right += estimate == 500 ? 1 : 0;
    lowest += estimate == 100 ? 1 : 0;
  }
  EXPECT_NEAR(right, 0.8 * kDraws, 4 * std::sqrt(0.16 * kDraws));
  EXPECT_NEAR(lowest, 0.2 / 9 * kDraws, 4 * std::sqrt(0.022 * kDraws)) << "the others are alike";
}

TEST(Predictor, LognormalErrorsHaveTheirDeviation) {
  const auto p = predictor("lognormal", "{sigma: 0.5, bias: 2}");
  constexpr int kDraws = 20'000;
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
  constexpr int kDraws = 20'000;
  int low = 0;
  for (int i = 0; i < kDraws; ++i) {
    const auto n = static_cast<std::uint64_t>(i);
    EXPECT_EQ(p->output_tokens(request(n, 10)), 10);
    low += p->output_tokens(request(n, 5000)) == 10 ? 1 : 0;
  }
  EXPECT_NEAR(low, 0.25 * kDraws, 4 * std::sqrt(0.1875 * kDraws));
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
