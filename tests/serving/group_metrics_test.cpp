#include <gtest/gtest.h>

#include "serving/metrics.h"

namespace kvlab {
namespace {

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
