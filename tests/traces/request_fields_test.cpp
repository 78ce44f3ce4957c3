#include <gtest/gtest.h>

#include <array>
#include <set>

#include "tests/traces/trace_test_files.h"
#include "traces/block_hashes.h"
#include "traces/image_tokens.h"
#include "traces/numbers.h"
#include "traces/write_trace.h"

namespace kvlab {
namespace {

constexpr std::array<std::uint64_t, 4> kHashes{11, 22, 33, 44};

TraceRequest request(std::int32_t prompt, std::int32_t output, std::int32_t hash_tokens, std::size_t num_hashes) {
  TraceRequest r;
  r.prompt_tokens = prompt;
  r.output_tokens = output;
  r.hash_tokens = hash_tokens;
  r.hashes = std::span(kHashes).first(num_hashes);
  return r;
}

TEST(BlockHashes, PartialHashesCoverThePromptOnlyAndFullOnesGeneratedTokensToo) {
  const TraceRequest r = request(1100, 500, 512, 3);  // as Mooncake writes it
  EXPECT_EQ(covered_tokens(r), 1100);
  EXPECT_EQ(num_block_hashes(r, 512), 2U);
  EXPECT_EQ(num_block_hashes(r, 1024), 1U);
  EXPECT_EQ(num_block_hashes(r, 16), 68U);  // floor(1100 / 16)
  EXPECT_EQ(num_block_hashes(r, 1100), 0U) << "neither size divides the other";
  EXPECT_EQ(num_block_hashes(request(1100, 5, 512, 2), 512), 2U);
  EXPECT_EQ(num_block_hashes(request(1024, 5, 512, 2), 512), 2U);
  EXPECT_EQ(num_block_hashes(request(1024, 5, 512, 2), 256), 4U);
  EXPECT_EQ(num_block_hashes(request(1024, 5, 512, 0), 512), 0U);
  const TraceRequest behind = request(20, 44, 16, 4);
  EXPECT_EQ(covered_tokens(behind), 64);
  EXPECT_EQ(num_block_hashes(behind, 16), 4U);
  EXPECT_EQ(num_block_hashes(behind, 32), 2U);
  EXPECT_EQ(num_block_hashes(request(20, 12, 16, 2), 16), 1U) << "the last chunk crosses the prompt's end: only the prompt is sure";
  EXPECT_EQ(num_block_hashes(request(16, 16, 16, 2), 16), 2U);
}

TEST(BlockHashes, NamesOfBlocksAndOfPartsOfChunks) {
  EXPECT_EQ(block_hash(512, kHashes, 512, 2), 33U);
  EXPECT_EQ(block_hash(512, kHashes, 1024, 0), 22U);
  EXPECT_EQ(block_hash(512, kHashes, 1024, 1), 44U);
  for (const std::int32_t block_tokens : {1, 4, 16, 256}) {
    std::set<std::uint64_t> names;
    const auto count = static_cast<std::uint32_t>(4 * 512 / block_tokens);
    for (std::uint32_t i = 0; i < count; ++i) names.insert(block_hash(512, kHashes, block_tokens, i));
    EXPECT_EQ(names.size(), count) << "of " << block_tokens << " tokens";
  }
  constexpr std::array<std::uint64_t, 4> kOther{11, 23, 33, 44};  // the second chunk differs
  EXPECT_EQ(block_hash(512, kHashes, 16, 31), block_hash(512, kOther, 16, 31));
  EXPECT_NE(block_hash(512, kHashes, 16, 32), block_hash(512, kOther, 16, 32));
}

TEST(BlockHashes, ConsecutiveBlocksHaveTheNamesOfEach) {
  for (const std::int32_t block_tokens : {1, 4, 16, 256, 512, 1024, 2048}) {
    const auto count = static_cast<std::uint32_t>(4 * 512 / block_tokens);
    for (const std::uint32_t first : {0U, 1U, count / 3, count / 2, count - 1}) {
      if (first >= count) continue;
      BlockHashes hashes(512, kHashes, block_tokens, first);
      for (std::uint32_t i = first; i < count; ++i)
        ASSERT_EQ(hashes.next(), block_hash(512, kHashes, block_tokens, i))
            << i << " from " << first << " of " << block_tokens << " tokens";
    }
  }
  BlockHashes(0, {}, 16, 0);  // reads nothing
}

TEST(BlockHashes, RunsHaveTheKeysOfTheBlocksOneByOne) {
  for (const std::int32_t block_tokens : {4, 16, 24, 256, 512, 1024}) {
    const std::int32_t hash_tokens = block_tokens == 24 ? 480 : 512;
    const std::uint32_t blocks =
        static_cast<std::uint32_t>(kHashes.size()) * static_cast<std::uint32_t>(hash_tokens) / static_cast<std::uint32_t>(block_tokens);
    BlockHashes runs(hash_tokens, kHashes, block_tokens, 1), keys(hash_tokens, kHashes, block_tokens, 1);
    for (std::uint32_t done = 1; done < blocks;) {
      const KeyRun run = runs.next_run(std::min(blocks - done, 5U));
      ASSERT_TRUE(run.count > 0 && run.count <= 5 && run.first >> 3 == (run.first + run.count - 1) >> 3);
      for (std::uint32_t i = 0; i < run.count; ++i) ASSERT_EQ(run.first + i, keys.next()) << block_tokens << ' ' << done + i;
      done += run.count;
    }
  }
}

constexpr std::int64_t kSecond = 1'000'000'000;

std::int64_t time_of(const std::string& text, std::int64_t unit = kSecond) {
  std::int64_t value = 0;
  return parse_time_ns(text, unit, value) ? value : -1;
}

TEST(Numbers, TimesAreExactToTheNanosecond) {
  EXPECT_EQ(time_of("0"), 0);
  EXPECT_EQ(time_of("0.1"), 100'000'000);
  EXPECT_EQ(time_of("4.314579"), 4'314'579'000);
  EXPECT_EQ(time_of("1.0000000004"), kSecond);
  EXPECT_EQ(time_of("1.0000000005"), kSecond + 1);
  EXPECT_EQ(time_of("0.9999999999"), kSecond);
  EXPECT_EQ(time_of("123456789.123456789"), 123'456'789'123'456'789);
  EXPECT_EQ(time_of("3000.25", 1'000'000), 3'000'250'000);
  EXPECT_EQ(time_of("7.5", 1), 8);
  EXPECT_EQ(time_of("5e-05"), 50'000);
  EXPECT_EQ(time_of("1.5E3"), 1500 * kSecond);
}

TEST(Numbers, TimesThatAreNoneOrBeyondTenYears) {
  for (const char* text : {"", "-1", "+1", ".5", "1.", "1.5s", "0x10", "nan", "inf", "1e", "1_000", " 1", "1 ", "-1e3", "e5"})
    EXPECT_EQ(time_of(text), -1) << "'" << text << "'";
  EXPECT_EQ(time_of("315360000"), kMaxTraceNs);
  for (const char* text : {"315360001", "99999999999999999999999999", "1e300"}) EXPECT_GT(time_of(text), kMaxTraceNs) << text;
}

TEST(Numbers, DateTimes) {
  std::int64_t value = 0;
  ASSERT_TRUE(parse_date_time_ns("1970-01-01 00:00:00", value));
  EXPECT_EQ(value, 0);
  ASSERT_TRUE(parse_date_time_ns("2024-02-29T12:30:01.5Z", value));
  EXPECT_EQ(value, 1'709'209'801 * kSecond + kSecond / 2);
  ASSERT_TRUE(parse_date_time_ns("2024-02-29 12:30:01-01:30", value));
  EXPECT_EQ(value, (1'709'209'801 + 5400) * kSecond);
  for (const char* text : {"2023-02-29 00:00:00", "2023-13-01 00:00:00", "2023-01-01 24:00:00", "2023-01-01 00:60:00",
                           "2023-01-01 00:00:60", "2023-01-01", "2023-01-01 00:00", "2023-01-01 00:00:00.", "2023-01-01 00:00:00+0000",
                           "23-01-01 00:00:00", "2023-01-01 00:00:00 ", "1969-12-31 23:59:59", "2200-01-01 00:00:00"}) {
    EXPECT_FALSE(parse_date_time_ns(text, value)) << text;
  }
}

TEST(Numbers, UnsignedDigitsOnly) {
  std::uint64_t value = 0;
  EXPECT_TRUE(parse_unsigned("18446744073709551615", value));
  EXPECT_EQ(value, ~std::uint64_t{0});
  EXPECT_TRUE(parse_unsigned("0", value));
  for (const char* text : {"", "-1", "+1", "01", "18446744073709551616", "1.0", "1e3", "a"})
    EXPECT_FALSE(parse_unsigned(text, value)) << text;
}

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

// Empty fields are not given.
TEST(FactColumns, ComeBackAsWritten) {
  for (const char* format : {"csv", "jsonl"}) {
    InMemoryTrace trace = read_all(kCsv);
    const std::string text = written(trace, format);
    const InMemoryTrace again = read_all(text);
    for (const InMemoryTrace* const t : std::array<const InMemoryTrace*, 2>{&trace, &again}) {
      expect_facts_of_first_row(t->at(0));
      for (std::size_t i = 0; i < kFactColumns.size(); ++i) EXPECT_FALSE(has_fact(t->at(1).facts, static_cast<Fact>(i))) << kFactColumns[i];
    }
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

constexpr const char* kHead = "arrival_ns,prompt_tokens,output_tokens,hash_tokens,hashes,images\n";

std::unique_ptr<TraceSource> trace_of_rows(const std::string& rows) { return std::make_unique<InMemoryTrace>(read_all(kHead + rows)); }

TEST(ImageTokens, ComeAfterTheText) {
  ImageTokens trace(trace_of_rows("0,10,5,,,3\n1,10,5,,,\n2,10,5,,,0\n"), 100);
  TraceRequest request;
  for (const std::int32_t tokens : {310, 10, 10}) {
    ASSERT_TRUE(trace.next(request));
    EXPECT_EQ(std::tuple(request.prompt_tokens, images_of(request)), std::tuple(tokens, tokens == 310 ? 3 : 0));
  }
  EXPECT_FALSE(trace.next(request));
}

// Hashes of chunks of 4 tokens over prompt and output. Those of the whole chunks of the text stay.
TEST(ImageTokens, TokensAfterTheTextHaveNoHashes) {
  ImageTokens trace(trace_of_rows("0,10,6,4,1 2 3 4,1\n1,3,9,4,1 2 3,1\n2,10,6,4,1 2 3 4,\n"), 100);
  TraceRequest request;
  ASSERT_TRUE(trace.next(request));
  EXPECT_EQ(request.hashes.size(), 2U);
  ASSERT_TRUE(trace.next(request));
  EXPECT_EQ(std::tuple(request.hashes.empty(), request.hash_tokens), std::tuple(true, 0));
  ASSERT_TRUE(trace.next(request));
  EXPECT_EQ(request.hashes.size(), 4U);
}

TEST(ImageTokens, AreRefusedWhereNothingSaysWhatAnImageIs) {
  ImageTokens trace(trace_of_rows("0,10,5,,,\n1,10,5,,,2\n"), 0);
  TraceRequest request;
  ASSERT_TRUE(trace.next(request));
  const std::string error = error_of([&] { trace.next(request); });
  EXPECT_NE(error.find("request 1 of the trace (counted from 0) has 2 images"), std::string::npos) << error;
  const std::string negative = error_of([&] { trace_of_rows("0,10,5,,,-1\n"); });
  EXPECT_THAT(negative, has_all({"f:2", "column 'images'"}));
}

}  // namespace
}  // namespace kvlab
