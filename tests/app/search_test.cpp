#include "app/runs/sweep/search.h"

#include <gtest/gtest.h>

#include "app/runs/plan/input_files.h"
#include "app/runs/report/known_metrics.h"
#include "app/runs/report/report.h"
#include "app/runs/report/summary_row.h"
#include "base/config/params.h"
#include "tests/error_of.h"
#include "tests/has_all.h"
#include "traces/make_trace.h"

namespace kvlab {
namespace {

// 100 judged requests, so many of which attain; all others miss their TTFT. All gaps are of `gap_ms`.
Probe probe_of(std::uint64_t attained, double gap_ms = 0) {
  Probe probe;
  probe.latencies.counted = probe.latencies.judged = 100;
  probe.latencies.attained = attained;
  probe.latencies.slo_attainment_frac = static_cast<double>(attained) / 100;
  probe.latencies.missed = {100 - attained, 0, 0, 0};
  probe.latencies.itl = {1000, gap_ms * 1e6, gap_ms * 1e6, gap_ms * 1e6, gap_ms * 1e6, gap_ms * 1e6, gap_ms * 1e6};
  return probe;
}

SearchResult search_rates(const SearchPlan& plan, double limit_per_s) {
  return search(plan, [&](double rate) { return probe_of(rate <= limit_per_s ? 95 : 50); });
}

SearchPlan plan_from(const std::string& yaml, bool has_slo = true) {
  Params p = Params::from_text(yaml);
  return *read_search(p, has_slo);
}

std::vector<double> tried(const SearchResult& result) {
  std::vector<double> values;
  for (const Probe& probe : result.probes) values.push_back(probe.value);
  return values;
}

TEST(Search, FindsTheRateOrSaysThatTheRangeDoesNotHoldIt) {
  const SearchResult found = search_rates({1, 100, 0.9, 0.01}, 37.3);
  EXPECT_LE(found.best, 37.3);
  EXPECT_GE(found.best, 37.3 * 0.98);
  EXPECT_EQ(found.note, "");
  EXPECT_LE(found.probes.size(), 12U);
  EXPECT_EQ(search_rates({1, 100, 0.9, 0.01}, 1000).best, 100);
  EXPECT_EQ(search_rates({1, 100, 0.9, 0.01}, 1000).note, "even 100/s attains: raise the upper end of search.rate");
  EXPECT_FALSE(search_rates({1, 100, 0.9, 0.01}, 0.5).best.has_value());
  EXPECT_EQ(search_rates({1, 100, 0.9, 0.01}, 0.5).note, "not even 1/s attains: lower the lower end of search.rate, or relax the SLO");
}

TEST(Search, AsksForTheShareOfANamedSlo) {
  EXPECT_EQ(plan_from("{slo: mlperf_llama3.1-8b_server, search: {rate: [1, 2]}}").attainment, 0.99);
  EXPECT_EQ(plan_from("{slo: mlperf_llama3.1-8b_server, search: {rate: [1, 2], attainment: 0.8}}").attainment, 0.8);
  EXPECT_EQ(plan_from("{slo: {ttft_ms: 100}, search: {rate: [1, 2]}}").attainment, 0.9);
}

TEST(Search, SaysWhenAttainmentIsNotMonotonic) {
  const SearchResult found = search({1, 9, 0.9, 0.01}, [](double rate) { return probe_of(rate < 2 || (rate > 6 && rate < 8) ? 100 : 0); });
  EXPECT_EQ(found.note, "");  // 1 hits, 9 misses, 5 misses, ...: nothing seen contradicts
  const SearchResult other = search({1, 9, 0.9, 0.01}, [](double rate) { return probe_of(rate > 4 ? 100 : 0); });
  EXPECT_THAT(other.note, HasSubstr("attainment is not monotonic: 1/s misses the target (0.0000) but 9/s meets it (1.0000)"));
}

TEST(Search, KeepsTheLimitOfGaps) {
  SearchPlan plan = plan_from("search: {rate: [1, 100], tolerance_frac: 0.01, itl_p99_ms: 20}");
  const auto probe = [](double rate) { return probe_of(rate <= 60 ? 95 : 50, rate); };
  const double both = *search(plan, probe).best;
  EXPECT_LE(both, 20);
  EXPECT_GE(both, 20 * 0.98);
  plan.limits[0].limit_ms = 80;
  EXPECT_LE(search(plan, probe).best, 60) << "the SLO holds, too";
  plan.has_slo = false;
  EXPECT_GE(search(plan, probe).best, 80 * 0.98);
}

// Users: 1 and 100 first, then halves: the last two are neighbours.
TEST(Search, WholeNumbersAreFoundExactly) {
  const SearchPlan users = plan_from("search: {concurrency: [1, 100]}");
  for (const double limit : {1.0, 2.0, 37.0, 98.0, 99.0}) {
    const SearchResult found = search(users, [&](double n) { return probe_of(n <= limit ? 95 : 50); });
    EXPECT_EQ(found.best, limit);
    ASSERT_NE(found.next_failure(users), nullptr);
    EXPECT_EQ(found.next_failure(users)->value, limit + 1);
    EXPECT_EQ(found.next_failure(users)->binding_limit, "ttft");
    EXPECT_EQ(found.note, "");
  }
}

// The fewest replicas are searched, so the search comes from above.
TEST(Search, FindsTheFewestReplicas) {
  const SearchPlan replicas = plan_from("search: {replicas: [1, 64]}");
  const auto needs = [&](double fewest) { return search(replicas, [=](double n) { return probe_of(n >= fewest ? 95 : 50); }); };
  for (const double fewest : {2.0, 3.0, 41.0, 64.0}) {
    EXPECT_EQ(needs(fewest).best, fewest);
    EXPECT_EQ(needs(fewest).next_failure(replicas)->value, fewest - 1);
  }
  EXPECT_EQ(tried(needs(3)), (std::vector<double>{64, 1, 32, 16, 8, 4, 2, 3}));
  EXPECT_EQ(needs(1).best, 1);
  EXPECT_EQ(needs(1).note, "") << "there is nothing below one replica";
  EXPECT_EQ(needs(1).next_failure(replicas), nullptr);
  EXPECT_FALSE(needs(65).best.has_value());
  EXPECT_EQ(needs(65).note, "not even 64 replicas attains: raise the upper end of search.replicas, or relax the SLO");
  EXPECT_EQ(needs(65).next_failure(replicas)->value, 64) << "the easiest";
}

// More GPUs can be slower: every degree is tried, and one that the model does not fit on fails.
TEST(Search, TriesEveryTensorParallelDegree) {
  const SearchPlan tp = plan_from("search: {tp: [1, 16]}");
  const SearchResult found = search(tp, [](double n) {
    Probe probe = probe_of(n == 4 || n == 8 ? 95 : 50);
    if (n == 1) probe.refusal = "does not fit";
    return probe;
  });
  EXPECT_EQ(tried(found), (std::vector<double>{1, 2, 4, 8, 16}));
  EXPECT_EQ(found.best, 4);
  EXPECT_EQ(found.next_failure(tp)->value, 2);
  EXPECT_EQ(found.probes[0].binding_limit, "cannot run");
  EXPECT_EQ(found.note, "attainment is not monotonic: tp 16 misses the target (0.5000) but tp 4 meets it (0.9500)");
}

// "TTFT P99 <= 1 s and TPOT P50 <= 50 ms", without an SLO of each request.
TEST(Search, PercentilesAlone) {
  const SearchPlan plan = plan_from("search: {rate: [1, 100], ttft_p99_ms: 1000, tpot_p50_ms: 50}", false);
  ASSERT_EQ(plan.limits.size(), 2U);
  MetricsCollector::Latencies l;
  l.counted = l.completed = 200;
  l.ttft = {200, 1e9, 1e9, 1e9, 1e9, 1e9, 5e9};
  l.tpot = {200, 1e6, 50e6, 1e9, 1e9, 1e9, 1e9};
  EXPECT_EQ(binding_limit(plan, l), "") << "at the limits";
  l.ttft.p99 += 1;
  EXPECT_EQ(binding_limit(plan, l), "ttft_p99_ms");
  l.tpot.p50 += 1;
  EXPECT_EQ(binding_limit(plan, l), "ttft_p99_ms+tpot_p50_ms");
  // A rejected request is later than any limit: 1 of 100 may be beyond the 99th percentile, 2 may not.
  const SearchPlan gaps = plan_from("search: {rate: [1, 100], ttft_p99_ms: 1000, itl_p99_ms: 10}", false);
  l = {};
  l.counted = 100;
  l.rejected = 1;
  EXPECT_EQ(binding_limit(gaps, l), "");
  l.rejected = 2;
  EXPECT_EQ(binding_limit(gaps, l), "ttft_p99_ms") << "gaps are not of requests";
}

TEST(Search, RefusesWhatItCannotDo) {
  const std::tuple<std::string, bool, const char*> cases[] = {{"{rate: [1, 2], replicas: [1, 2]}", true, "rate and replicas are given"},
                                                              {"{concurrency: [1, 2.5]}", true, "whole numbers of users"},
                                                              {"{tp: [1, 6]}", true, "powers of two"},
                                                              {"{concurrency: [1, 8], tolerance_frac: 0.1}", true, "found exactly"},
                                                              {"{rate: [1, 8], ramp_s: 1}", true, "is of searches over 'concurrency'"},
                                                              {"{rate: [1, 8], ttft_p98_ms: 1}", true, "'ttft_p98_ms' is no limit"},
                                                              {"{rate: [1, 8]}", false, "'ttft_p99_ms'"}};
  for (const auto& [search, has_slo, message] : cases) {
    const auto read = [&, &text = search, &slo = has_slo] { plan_from("search: " + text, slo); };
    EXPECT_THAT(error_of(read), HasSubstr(message)) << search;
  }
}

TEST(RescaledTrace, HasTheRateAskedFor) {
  const char* const yaml = "{generate: {requests: 500, arrival: {poisson: {rate_per_s: 4}}, prompt_tokens: 10, output_tokens: 2}}";
  const auto open = [&] {
    Params p = Params::from_text(yaml);
    return make_trace(p, 3);
  };
  const double native = mean_rate(*open(), 0);
  EXPECT_NEAR(native, 4, 0.8);
  RescaledTrace faster(open(), native / 40);
  EXPECT_NEAR(mean_rate(faster, 0), 40, 0.01);
}

// Sentences of several runs as one, the answer of a search for hardware, and the price that is taken away.

std::vector<std::string> joined(const std::vector<std::string>& texts) {
  JoinedTexts all;
  for (const std::string& text : texts) all.add(text);
  std::vector<std::string> found;
  for (std::size_t i = 0; i < all.size(); ++i) found.push_back(all.text(i));
  return found;
}

TEST(Joined, NumbersAreARangeNamesAreListedAndOtherSentencesStayApart) {
  EXPECT_EQ(joined({"about 8 % of step time is by A100 at tp 2", "about 12.5 % of step time is by H100 at tp 4",
                    "about 9 % of step time is by A100 at tp 8"}),
            std::vector<std::string>{"about 8 to 12.5 % of step time is by A100|H100 at tp 2 to 8"});
  EXPECT_EQ(joined({"one two three four five (6), seven", "one two three four five (11), seven"}),
            std::vector<std::string>{"one two three four five (6 to 11), seven"});
  EXPECT_EQ(joined({"no price", "no energy"}).size(), 2U) << "in short ones each word counts";
  EXPECT_EQ(joined({"a b c d e f", "a b c x y z"}).size(), 2U) << "less than two thirds are equal";
  EXPECT_EQ(joined({"a b c d e f", "a b c d e f g"}).size(), 2U) << "of another length";
  EXPECT_EQ(joined({"the same", "the same"}), std::vector<std::string>{"the same"});
  std::vector<std::string> texts;
  for (const char* name : {"a", "b", "c", "d", "e", "f"}) texts.push_back(std::string("one two three four five card ") + name);
  EXPECT_EQ(joined(texts), std::vector<std::string>{"one two three four five card a|b|c|d|..."});
}

CsvTable sized() {
  return parse_csv(
      "run,hardware,search_replicas,gpus,dollars_per_million_tokens\n"
      "r1,h100,4,4,2.5\nr2,l40s,,8,\nr3,a10g,6,6,1.5\nr4,b200,2,2,2.5\n",
      "summary.csv");
}

TEST(Sizing, TheCheapestThatAttainsIsFirst) {
  CsvTable table = sized();
  const std::string line = put_answer_first(table, 1);
  EXPECT_EQ(table.rows[0][0], "r3");
  EXPECT_EQ(table.rows[1][0], "r4") << "of one price the fewer GPUs";
  EXPECT_EQ(table.rows[3][0], "r2") << "the one that does not attain is last";
  EXPECT_NE(line.find("hardware=a10g"), std::string::npos) << line;
  CsvTable one = sized();
  one.rows.resize(1);
  EXPECT_EQ(put_answer_first(one, 1), "");
  CsvTable rates = parse_csv("run,hardware,search_rate_per_s\nr1,h100,1\nr2,l40s,2\n", "summary.csv");
  EXPECT_EQ(put_answer_first(rates, 1), "");
  EXPECT_EQ(rates.rows[0][0], "r1");
}

TEST(Price, IsTakenFromARunThatMissesItsSlo) {
  Bill bill;
  bill.energy_j = 5, bill.dollars_per_million_tokens = 2;
  take_price(bill);
  EXPECT_FALSE(bill.dollars_per_million_tokens.has_value());
  EXPECT_EQ(std::tuple(bill.energy_j, bill.remark), std::tuple(5, "no price, since the SLO is not attained"));
  take_price(bill);
  EXPECT_EQ(bill.remark, "no price, since the SLO is not attained") << "there is none to take";
  Bill other;
  other.remark = "no energy", other.dollars_per_million_tokens = 1;
  take_price(other);
  EXPECT_EQ(other.remark, "no energy; no price, since the SLO is not attained");
}

}  // namespace
}  // namespace kvlab
