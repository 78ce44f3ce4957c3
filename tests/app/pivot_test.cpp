#include "tests/app/app_fixture.h"

namespace kvlab {
namespace {

struct PivotTest : AppTest {
  PivotTest() {
    write("r/summary.csv",
          "run,scheduler,trace.arrival.poisson.rate_per_s,seed,goodput_per_s,binding_limit\n"
          "a,orca,1,1,0.5,ttft\nb,orca,1,2,0.7,ttft\nc,orca,2,1,0.25,ttft\nd,orca,2,2,0.25,tpot\n"
          "e,sarathi,1,1,1,\nf,sarathi,1,2,1,\n");
  }
};

// Means 0.6 and 0.25: the first has an interval of 12.706 x 0.1, the second has none, since its seeds agree.
TEST_F(PivotTest, MeansOverSeedsByHand) {
  EXPECT_EQ(call_ok({"pivot", "r", "--rows", "scheduler", "--columns", "rate_per_s", "--metric", "goodput_per_s"}).out,
            "goodput_per_s over trace.arrival.poisson.rate_per_s; mean over n = 2 seeds, +- half of the 95 % t-interval\n"
            "scheduler  1                   2\n"
            "orca       0.600 +- 1.271  0.250\n"
            "sarathi    1\n");
}

TEST_F(PivotTest, Csv) {
  EXPECT_EQ(call({"pivot", "r", "--rows", "rate_per_s", "--columns", "scheduler", "--metric", "goodput_per_s", "--csv"}).out,
            "trace.arrival.poisson.rate_per_s,orca,sarathi\n1,0.6,1\n2,0.25,\n");
}

// Also by the heading of the printed table, 'binding'.
TEST_F(PivotTest, TextsAndOneColumn) {
  for (const char* metric : {"binding_limit", "binding"})
    EXPECT_EQ(call({"pivot", "r", "--rows", "rate_per_s", "--metric", metric, "--where", "scheduler=orca", "--csv"}).out,
              "trace.arrival.poisson.rate_per_s,binding_limit\n1,ttft\n2,ttft/tpot\n");
}

TEST_F(PivotTest, AnAxisIsNeverAveragedOver) {
  EXPECT_THAT(error_of_call({"pivot", "r", "--rows", "scheduler", "--metric", "goodput_per_s"}),
              HasSubstr("rate_per_s varies within a cell (1, 2): make it --rows or --columns, or choose one by --where"));
  EXPECT_EQ(call({"pivot", "r", "--rows", "scheduler", "--metric", "goodput_per_s", "--where", "rate_per_s=2"}).status, 0);
}

TEST_F(PivotTest, NamesWhatIsWrong) {
  const auto error = [](const std::vector<std::string>& more) { return call({"pivot", "r"}, more).err; };
  EXPECT_THAT(error({"--rows", "schedular", "--metric", "goodput_per_s"}), HasSubstr("scheduler"));
  EXPECT_THAT(error({"--rows", "scheduler", "--metric", "goodput_per_s", "--where", "rate_per_s=9"}), HasSubstr("its values: 1, 2"));
  EXPECT_THAT(error({"--rows", "scheduler", "--metric", "goodput_per_s", "--where", "x"}), HasSubstr("is not AXIS=VALUE"));
  EXPECT_THAT(error({"--rows", "scheduler", "--metric", "$/1M tokens"}), HasSubstr("has no column '$/1M tokens'; known: "));
  EXPECT_THAT(error({"--rows", "scheduler", "--metric", "bindin"}), HasSubstr("did you mean 'binding'"));
}

}  // namespace
}  // namespace kvlab
