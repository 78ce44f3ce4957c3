#include "tests/traces/trace_test_files.h"
#include "traces/write_trace.h"

namespace kvlab {
namespace {

constexpr const char* kCsv =
    "arrival_ns,prompt_tokens,output_tokens,client,class,priority,ttft_slo_ms,tpot_slo_ms,tbt_slo_ms,predicted_output,program,turn\n"
    "0,10,5,3,chat,-2,500,20.5,100.000001,7,11,0\n"
    "1,10,5,,,,,,,,,\n";

void expect_facts_of_first_row(const TraceRequest& r) {
  ASSERT_NE(r.facts, nullptr);
  EXPECT_EQ(std::tuple(r.facts->client, r.facts->request_class.text()), std::tuple(3, "chat"));
  EXPECT_EQ(std::tuple(r.facts->priority, r.facts->ttft_slo, r.facts->tpot_slo, r.facts->tbt_slo, r.facts->predicted_output,
                       r.facts->program, r.facts->turn),
            std::tuple(-2, Span(500'000'000), Span(20'500'000), Span(100'000'001), 7, 11, 0));
}

std::string written(TraceSource& source, const std::string& format) {
  const TraceWriter writer = make_trace_writer(format);
  std::string text;
  for (TraceRequest request; source.next(request);) writer(request, text);
  return text;
}

TEST(FactColumns, AreReadAndEmptyFieldsAreNotGiven) {
  const InMemoryTrace trace = read_all(kCsv);
  expect_facts_of_first_row(trace.at(0));
  for (std::size_t i = 0; i < kFactColumns.size(); ++i) EXPECT_FALSE(has_fact(trace.at(1).facts, static_cast<Fact>(i))) << kFactColumns[i];
}

TEST(FactColumns, ComeBackAsWritten) {
  for (const char* format : {"csv", "jsonl"}) {
    InMemoryTrace trace = read_all(kCsv);
    const std::string text = written(trace, format);
    const InMemoryTrace again = read_all(text);
    expect_facts_of_first_row(again.at(0));
    EXPECT_FALSE(has_fact(again.at(1).facts, Fact::kClient)) << format;
  }
}

// A trace without them is written as it was before there were such columns, and its requests have no record of facts.
TEST(FactColumns, AreAbsentWhereTheTraceHasNone) {
  InMemoryTrace trace = read_all("arrival_ns,prompt_tokens,output_tokens\n0,10,5\n");
  EXPECT_EQ(trace.at(0).facts, nullptr);
  EXPECT_EQ(written(trace, "csv"), "arrival_ns,prompt_tokens,output_tokens,session,delay_ns,hash_tokens,hashes\n0,10,5,,,,\n");
}

TEST(FactColumns, AClientMayBeAnyText) {
  const InMemoryTrace trace = read_all("arrival_ns,prompt_tokens,output_tokens,client\n0,1,1,alice\n1,1,1,bob\n2,1,1,alice\n");
  EXPECT_EQ(trace.at(0).facts->client, trace.at(2).facts->client);
  EXPECT_NE(trace.at(0).facts->client, trace.at(1).facts->client);
}

TEST(FactColumns, ErrorsNameRowAndColumn) {
  const std::string head = "arrival_ns,prompt_tokens,output_tokens,";
  const std::string priority = error_of([&] { read_all(head + "priority\n0,1,1,high\n"); });
  EXPECT_THAT(priority, has_all({"f:2", "priority"}));
  const std::string name = error_of([&] { read_all(head + "class\n0,1,1,a-name-of-twenty-four-byte\n"); });
  EXPECT_NE(name.find("at most 23"), std::string::npos) << name;
}

constexpr const char* kGenerated = R"(
generate:
  requests: 20000
  arrival: {poisson: {rate_per_s: 10}}
  prompt_tokens: 10
  output_tokens: 5
  clients: {num: 4, zipf: 1}
  classes: {chat: {share_frac: 0.7, ttft_slo_ms: 200, priority: 1}, batch: {share_frac: 0.3}}
)";

// P(client k) ~ 1 / (k + 1): of four, the first has 12/25.
TEST(GeneratedFacts, HaveTheirShares) {
  const auto trace = trace_of(kGenerated);
  int chat = 0, first = 0, last = 0, count = 0;
  for (TraceRequest r; trace->next(r); ++count) {
    ASSERT_NE(r.facts, nullptr);
    const bool is_chat = r.facts->request_class.text() == "chat";
    chat += is_chat ? 1 : 0;
    first += r.facts->client == 0 ? 1 : 0;
    last += r.facts->client == 3 ? 1 : 0;
    EXPECT_EQ(has_fact(r.facts, Fact::kTtftSlo), is_chat);
    EXPECT_EQ(has_fact(r.facts, Fact::kPriority), is_chat);
  }
  EXPECT_NEAR(chat / 20'000.0, 0.7, 0.015);
  EXPECT_NEAR(first / 20'000.0, 12.0 / 25, 0.015);
  EXPECT_NEAR(last / 20'000.0, 3.0 / 25, 0.012);
}

TEST(GeneratedFacts, StayWithASession) {
  const auto trace = trace_of(R"(
generate:
  requests: 200
  arrival: {poisson: {rate_per_s: 10}}
  prompt_tokens: 10
  output_tokens: 5
  sessions: {turns: 4, think_time: {constant: {s: 1}}}
  clients: {num: 50}
)");
  std::int64_t client = -1;
  std::int32_t turn = 0;
  for (TraceRequest r; trace->next(r);) {
    if (!r.is_follow_up) {
      client = r.facts->client;
      turn = 0;
    }
    EXPECT_EQ(std::tuple(r.facts->client, r.facts->turn), std::tuple(client, turn++));
  }
}

TEST(GeneratedFacts, SharesThatDoNotAddUpAreRefused) {
  std::string yaml = kGenerated;
  yaml.replace(yaml.find("0.3"), 3, "0.2");
  EXPECT_NE(error_of([&] { trace_of(yaml); }).find("add up to 0.9, not to 1"), std::string::npos);
}

}  // namespace
}  // namespace kvlab
