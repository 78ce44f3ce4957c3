#include "serving/metrics.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/quantile.h"
#include "base/random.h"
#include "serving/contiguous.h"

namespace kvlab {
namespace {

// Long and short lists, smooth ones, with two far modes, and of equal values: quantiles equal those of the sorted list within half a bin.
TEST(LogHistogram, QuantilesAreWithinAFifthOfAPercent) {
  double worst = 0;
  for (std::uint64_t list = 0; list < 400; ++list) {
    const auto draw = [&](std::uint64_t i) { return Draw{3, Purpose::kTest, list, i, 0}; };
    const std::uint64_t size = 1 + draw(1 << 20).below(list % 3 == 0 ? 20'000 : 30);
    LogHistogram histogram;
    std::vector<std::int64_t> values;
    for (std::uint64_t i = 0; i < size; ++i) {
      const double smooth = draw(i).lognormal(static_cast<double>(list % 7) * 4, 1.5);
      const double two_modes = draw(i).uniform() < 0.7 ? 10'000'000 + 1'000 * smooth : 400'000'000;
      const double steps = 131'072.0 * static_cast<double>(1 + i % 2);  // starts of bins
      values.push_back(static_cast<std::int64_t>(list % 4 == 0 ? smooth : list % 4 == 1 ? two_modes : steps));
      histogram.add(values.back());
    }
    const Distribution exact = distribution_of(values);
    for (double q = 0; q <= 1; q += 0.01) {
      const double expected = quantile_of_sorted(values, q), off = std::abs(histogram.quantile(q) - expected);
      EXPECT_LE(off, expected / 512) << "list " << list << " of " << size << " at " << q;
      worst = std::max(worst, off / std::max(1.0, expected));
    }
    EXPECT_EQ(static_cast<double>(histogram.max()), exact.max);
    EXPECT_NEAR(histogram.mean(), exact.mean, 1e-9 * exact.mean);
  }
  EXPECT_GT(worst, 0.0015) << "the bound is reached";
}

// Fast-forward needs this: a progression added at once equals its members added one by one.
TEST(LogHistogram, ARunCountsLikeItsMembers) {
  LogHistogram one_by_one, in_runs;
  {
    HistogramRun run(in_runs);
    for (const std::int64_t value : {0, 0, 7, 7, 7, 5000, 7, 90, 90}) {
      one_by_one.add(value);
      run.add(value);
    }
  }
  EXPECT_EQ(std::tuple(in_runs.count(), in_runs.max()), std::tuple(9U, 5000));
  EXPECT_DOUBLE_EQ(in_runs.mean(), one_by_one.mean());
  for (const double frac : {0.0, 0.2, 0.5, 0.9, 1.0}) EXPECT_DOUBLE_EQ(in_runs.quantile(frac), one_by_one.quantile(frac)) << frac;
}

TEST(LogHistogram, ProgressionsCountLikeTheirMembers) {
  for (std::uint64_t i = 0; i < 500; ++i) {
    const auto draw = [&](std::uint64_t step) { return Draw{4, Purpose::kTest, i, step, 0}; };
    const auto terms = static_cast<std::int64_t>(1 + draw(0).below(3000));
    const auto step = static_cast<std::int64_t>(draw(1).below(2'000'000)) - 1'000'000;
    const auto first = static_cast<std::int64_t>(draw(2).below(1'000'000'000)) + std::max<std::int64_t>(0, -step) * terms;
    LogHistogram whole, single;
    whole.add_progression(first, step, terms, 3);
    for (std::int64_t t = 0; t < terms; ++t) single.add(first + t * step, 3);
    EXPECT_EQ(std::tuple(whole.count(), whole.max(), whole.mean()), std::tuple(single.count(), single.max(), single.mean()));
    for (double q = 0; q <= 1; q += 0.01) ASSERT_EQ(whole.quantile(q), single.quantile(q)) << first << " " << step << " " << terms;
  }
}

TEST(Distribution, InterpolatesLinearly) {
  std::vector<std::int64_t> values{40, 10, 20, 30};
  const Distribution d = distribution_of(values);
  EXPECT_DOUBLE_EQ(d.mean, 25);
  EXPECT_DOUBLE_EQ(d.p50, 25);
  EXPECT_DOUBLE_EQ(d.p90, 37);
  EXPECT_DOUBLE_EQ(d.max, 40);
  std::vector<std::int64_t> none;
  EXPECT_EQ(distribution_of(none).count, 0U);
}

TEST(Values, AreCountedFromAMillionOn) {
  Values values;
  for (std::int64_t i = 0; i < 1'200'000; ++i) values.add(1'000'000 + i);
  const Distribution d = values.finish();
  EXPECT_EQ(d.count, 1'200'000U);
  EXPECT_NEAR(d.p50, 1'600'000, 0.002 * 1'600'000);
  EXPECT_DOUBLE_EQ(d.max, 2'199'999);
}

RequestRecord record(double arrival_ms, double first_ms, double last_ms, std::int32_t out) {
  const auto at = [](double ms) { return kStart + Span(static_cast<std::int64_t>(ms * 1e6)); };
  RequestRecord r;
  r.arrival = r.queued = r.scheduled = at(arrival_ms);
  r.first_token = at(first_ms);
  r.last_token = at(last_ms);
  r.prompt_tokens = 10;
  r.output_tokens = out;
  r.outcome = Outcome::kCompleted;
  return r;
}

TEST(MetricsCollector, WarmUpIsLeftOutAndTheSloIsAConjunction) {
  const Slo slo{{true, Span(100'000'000), Span(10'000'000)}};
  MetricsCollector metrics(slo, kStart + Span(5'000'000));
  metrics.add(record(0, 1, 2, 2));        // in the warm-up
  metrics.add(record(10, 60, 150, 10));   // TTFT 50, TPOT 10: attains
  metrics.add(record(10, 120, 130, 10));  // TTFT 110: does not
  metrics.add(record(10, 60, 161, 11));   // TPOT 10.1: does not
  metrics.add(record(10, 60, 60, 1));     // one token: TTFT alone
  RequestRecord rejected = record(20, 20, 20, 1);
  rejected.outcome = Outcome::kRejected;
  metrics.add(rejected);
  const auto all = metrics.finish();
  EXPECT_EQ(std::tuple(all.completed, all.rejected, all.attained), std::tuple(4U, 1U, 2U));
  EXPECT_DOUBLE_EQ(all.slo_attainment_frac, 0.4);
  EXPECT_EQ(all.tpot.count, 3U);
}

// From the first turn's arrival to the last token of the last one; of sessions that were completed and began after the warm-up.
TEST(MetricsCollector, JobsAreWholeSessions) {
  MetricsCollector metrics({}, kStart + Span(5'000'000));
  const auto turn = [&](std::int64_t session, double arrival_ms, double last_ms, bool has_more, Outcome outcome = Outcome::kCompleted) {
    RequestRecord r = record(arrival_ms, arrival_ms, last_ms, 2);
    r.session = session;
    r.outcome = outcome;
    metrics.add_turn(r, has_more);
  };
  turn(1, 10, 20, true);
  turn(1, 50, 70, false);  // 60 ms
  turn(2, 10, 20, true);   // its next turn never comes
  turn(3, 10, 20, true, Outcome::kRejected);
  turn(3, 30, 40, false);
  turn(4, 1, 90, false);     // began in the warm-up
  turn(5, 30, 40, false);    // turns with arrivals of their own, the second
  turn(5, 12, 22, false);    // of them first: 28 ms
  turn(-1, 10, 500, false);  // no session
  const Distribution jct = metrics.finish().jct;
  EXPECT_EQ(jct.count, 2U);
  EXPECT_DOUBLE_EQ(jct.max, 60e6);
  EXPECT_DOUBLE_EQ(jct.mean, 44e6);
}

// Requests without a session are jobs by their program; one with both counts by its session.
TEST(MetricsCollector, JobsAreProgramsWhereThereAreNoSessions) {
  MetricsCollector metrics({}, kStart + Span(5'000'000));
  RequestFacts one, two, early;
  one.program = 1;
  two.program = 2;
  early.program = 3;
  const auto add = [&](const RequestFacts& facts, double arrival_ms, double last_ms, Outcome outcome = Outcome::kCompleted) {
    RequestRecord r = record(arrival_ms, arrival_ms, last_ms, 2);
    r.facts = &facts;
    r.outcome = outcome;
    metrics.add(r, outcome == Outcome::kUnfinished ? kStart + Span(900'000'000) : kNever);
    metrics.add_turn(r, false);
  };
  add(one, 30, 70);
  add(one, 10, 90);  // 80 ms, whatever their order
  add(one, 20, 40);
  add(two, 10, 20);
  add(two, 30, 40, Outcome::kUnfinished);
  add(early, 1, 20);
  add(early, 30, 40);
  const Distribution jct = metrics.finish().jct;
  EXPECT_EQ(jct.count, 1U);
  EXPECT_DOUBLE_EQ(jct.max, 80e6);
}

TEST(MetricsCollector, QualityOfExperienceIsOfCountedRequests) {
  MetricsCollector metrics({}, kStart + Span(5'000'000));
  metrics.add_qoe(record(0, 1, 2, 2), 0.1);  // in the warm-up
  metrics.add_qoe(record(10, 20, 30, 2), 0.25);
  metrics.add_qoe(record(10, 20, 30, 2), 1);
  metrics.add_qoe(record(10, 20, 30, 2), -1);
  const Distribution loss = metrics.finish().qoe_loss;
  EXPECT_EQ(loss.count, 2U);
  EXPECT_DOUBLE_EQ(loss.max, 750'000);
  EXPECT_DOUBLE_EQ(loss.mean, 375'000);
}

// As a third limit, alone or with the others, of completed requests and of those cut off.
TEST(MetricsCollector, TheSloOfTheWholeAnswer) {
  const Span none = Span::max(), limit(100'000'000);
  const std::pair<SloTarget, double> cases[] = {
      {{true, none, none, limit}, 2.0 / 4}, {{true, Span(20'000'000), none, limit}, 1.0 / 4}, {{true, limit, limit}, 3.0 / 3}};
  for (const auto& [slo, attained] : cases) {
    MetricsCollector metrics(Slo{slo}, kStart);
    metrics.add(record(0, 10, 100, 10));  // in the limit, as one at it is
    metrics.add(record(0, 90, 99, 10));
    metrics.add(record(0, 10, 101, 10));
    RequestRecord cut_off = record(0, 10, 10, 2);
    cut_off.outcome = Outcome::kUnfinished;
    metrics.add(cut_off, kStart + Span(101'000'000));
    EXPECT_DOUBLE_EQ(metrics.finish().slo_attainment_frac, attained);
  }
}

// Gaps are watched while the request runs (GapWatch); here only the verdict on them counts. One that may have no other late gap has missed
// once the wait for its next token is too long.
TEST(MetricsCollector, TheSloOfGaps) {
  SloTarget target = SloTarget::none();
  target.tbt = Span(20'000'000);
  const auto judged_and_attained = [&](GapState gaps, bool is_cut_off) {
    MetricsCollector metrics(Slo{target}, kStart);
    RequestRecord r = record(0, 10, 100, 10);
    r.gaps = gaps;
    if (is_cut_off) r.outcome = Outcome::kUnfinished;
    metrics.add(r, is_cut_off ? kStart + Span(121'000'000) : kNever);
    const auto all = metrics.finish();
    return std::tuple(all.judged, all.attained);
  };
  // 21 ms are one late gap, and a request within its limit may have one.
  for (const auto& [gaps, is_cut_off, judged, attained] : {std::tuple{GapState::kWithin, false, 1, 1},
                                                           {GapState::kLastChance, false, 1, 1},
                                                           {GapState::kMissed, false, 1, 0},
                                                           {GapState::kWithin, true, 0, 0},
                                                           {GapState::kLastChance, true, 1, 0},
                                                           {GapState::kMissed, true, 1, 0}})
    EXPECT_EQ(judged_and_attained(gaps, is_cut_off), std::tuple(judged, attained)) << static_cast<int>(gaps) << is_cut_off;
}

// By nearest rank, floor((1 - p) n) of n gaps may be late.
TEST(SloTarget, LateGapsAllowed) {
  SloTarget target;
  EXPECT_EQ(target.late_gaps_allowed(1000), 0) << "every gap counts";
  target.tbt_ppm = 990'000;
  EXPECT_EQ(std::tuple(target.late_gaps_allowed(99), target.late_gaps_allowed(100), target.late_gaps_allowed(0)), std::tuple(0, 1, 0));
  target.tbt_ppm = 500'000;
  EXPECT_EQ(target.late_gaps_allowed(3), 1);
}

TEST(ContiguousAllocator, FitsAndMerges) {
  ContiguousAllocator memory(100, ContiguousAllocator::Fit::kBest);
  EXPECT_EQ(memory.reserve(30), 0);
  EXPECT_EQ(memory.reserve(20), 30);
  EXPECT_EQ(memory.reserve(40), 50);
  memory.release(0, 30);              // holes: 30 at 0, 10 at 90
  EXPECT_EQ(memory.reserve(10), 90);  // best fit: the smaller hole
  EXPECT_EQ(memory.reserve(31), -1);
  memory.release(50, 40);  // 40 at 50: total 70 free, largest 40
  EXPECT_EQ(std::tuple(memory.free_tokens(), memory.largest_hole()), std::tuple(70, 40));
  EXPECT_EQ(memory.reserve(41), -1) << "external fragmentation";
  memory.release(30, 20);  // all three holes touch
  EXPECT_EQ(memory.largest_hole(), 90);
  memory.release(90, 10);
  EXPECT_EQ(memory.reserve(100), 0);
}

RequestRecord completed(const RequestFacts& facts, std::int64_t ttft_ms, std::int32_t prompt, std::int32_t output) {
  RequestRecord r;
  r.facts = &facts;
  r.arrival = kStart;
  r.first_token = kStart + Span(ttft_ms * 1'000'000);
  r.last_token = r.first_token + Span((output - 1) * 10'000'000LL);
  r.prompt_tokens = prompt;
  r.output_tokens = output;
  r.outcome = Outcome::kCompleted;
  return r;
}

TEST(GroupMetrics, RequestsAreHeldToTheirOwnTargets) {
  RequestFacts strict, lax, none;
  strict.ttft_slo = Span(50'000'000);
  lax.ttft_slo = Span(500'000'000);
  lax.tpot_slo = Span(9'999'999);
  const Slo run{{true, Span(200'000'000), Span::max(), Span::max()}};
  const auto attains = [&](const RequestFacts& facts, const Slo& slo) {
    const RequestRecord r = completed(facts, 100, 10, 5);
    return has_attained(r, targets_of(r, slo));
  };
  EXPECT_FALSE(attains(strict, run));
  EXPECT_FALSE(attains(lax, run)) << "10 ms per token are more than its target";
  EXPECT_TRUE(attains(none, run));
  EXPECT_FALSE(attains(none, Slo{})) << "no target at all: nothing is attained, and nothing judged";
  EXPECT_FALSE(attains(strict, Slo{}));
  lax.tpot_slo = Span(10'000'000);
  EXPECT_TRUE(attains(lax, Slo{})) << "other targets are then none";
}

// Two requests of a class: 40 and 10 tokens of 100 and 50 were in the cache; one of one token has no TPOT.
TEST(GroupMetrics, TpotAndHitsByGroup) {
  RequestFacts chat;
  chat.request_class = ClassName("chat");
  RequestRecord first = completed(chat, 100, 100, 5), second = completed(chat, 300, 50, 1), never = completed(chat, 0, 70, 1);
  first.scheduled = second.scheduled = kStart;
  first.hit_tokens = 40;
  second.hit_tokens = 10;
  never.outcome = Outcome::kRejected;
  GroupMetrics groups;
  for (const RequestRecord& r : {first, second, never}) groups.add(r, false, false);
  const GroupRow row = groups.finish().classes.at(0);
  EXPECT_EQ(std::tuple(row.tpot.count, row.tpot.p99, row.ttft.p50), std::tuple(1U, 10'000'000, 200'000'000));
  EXPECT_EQ(std::tuple(row.prompt_tokens, row.hit_tokens), std::tuple(150, 50));
}

// Those of the client, else of the class, else of the run; the request's own columns replace one limit each.
TEST(GroupMetrics, TargetsOfClassesAndClients) {
  const auto ttft = [](std::int64_t ms) {
    SloTarget target = SloTarget::none();
    target.ttft = Span(ms * 1'000'000);
    return target;
  };
  Slo run{ttft(1000)};
  run.tpot = Span(7);
  run.classes[ClassName("chat")] = ttft(500);
  run.classes[ClassName("chat")].tbt_ppm = 990'000;
  run.classes[ClassName("batch")] = SloTarget{};
  run.clients[7] = ttft(200);
  const auto targets = [&](std::string_view name, std::int64_t client, std::int64_t own_tbt = -1) {
    RequestFacts facts;
    facts.request_class = ClassName(name);
    facts.client = client;
    facts.tbt_slo = Span(own_tbt);
    return targets_of(completed(facts, 1, 1, 1), run);
  };
  const auto ttft_and_tpot = [](const SloTarget& target) { return std::pair(target.ttft, target.tpot); };
  EXPECT_EQ(ttft_and_tpot(targets("other", 1)), std::pair(Span(1'000'000'000), Span(7)));
  EXPECT_EQ(ttft_and_tpot(targets("chat", 1)), std::pair(Span(500'000'000), Span::max())) << "in place of all of the run's";
  EXPECT_EQ(targets("chat", 7).ttft, Span(200'000'000));
  EXPECT_FALSE(targets("batch", 1).is_set);
  EXPECT_EQ(std::tuple(targets("chat", 1, 42).tbt, targets("chat", 1, 42).tbt_ppm), std::tuple(Span(42), 990'000));
  EXPECT_TRUE(targets("batch", 1, 42).is_set);
  EXPECT_EQ(std::tuple(targets("batch", 1, 42).tbt_ppm, targets("batch", 1, 42).ttft), std::tuple(SloTarget::kEveryGap, Span::max()));
  EXPECT_TRUE(run.has_targets());
  EXPECT_FALSE(Slo{}.has_targets());
}

TEST(GroupMetrics, RequestsWithoutTargetsAreNotJudged) {
  Slo slo;
  slo.classes[ClassName("chat")] = SloTarget::none();
  MetricsCollector metrics(slo, kStart);
  RequestFacts chat, batch;
  chat.request_class = ClassName("chat");
  batch.request_class = ClassName("batch");
  metrics.add(completed(chat, 1, 1, 1));
  metrics.add(completed(batch, 1, 1, 1));
  const auto all = metrics.finish();
  EXPECT_EQ(std::tuple(all.completed, all.judged, all.attained), std::tuple(2U, 1U, 1U));
}

// Clients 1 and 2 have requests left at the end: 10 + 2 x 3 and 20 + 2 x 10 tokens of service. Client 3 has none left and does not count.
TEST(GroupMetrics, TheGapIsBetweenClientsWithUnfinishedRequests) {
  RequestFacts one, two, three;
  one.client = 1;
  two.client = 2;
  three.client = 3;
  GroupMetrics metrics;
  metrics.add(completed(one, 1, 10, 3), true, true);
  metrics.add(completed(two, 1, 20, 10), true, false);
  metrics.add(completed(three, 1, 1000, 1), true, true);
  for (const RequestFacts* facts : {&one, &two}) {
    RequestRecord waits;
    waits.facts = facts;
    waits.prompt_tokens = 50;
    metrics.add(waits, false, false);
  }
  const GroupSummary s = metrics.finish();
  ASSERT_EQ(s.clients.size(), 3U);
  EXPECT_TRUE(s.classes.empty());
  EXPECT_EQ(std::tuple(s.clients[1].name, s.clients[1].requests, s.clients[1].judged, s.clients[1].attained), std::tuple("2", 2U, 1U, 0U));
  EXPECT_EQ(s.clients[0].service_tokens, 16);
  ASSERT_TRUE(s.service_gap_tokens.has_value());
  EXPECT_EQ(*s.service_gap_tokens, 24);
}

}  // namespace
}  // namespace kvlab
