#include "traces/write_trace.h"

#include <rapidcheck/gtest.h>

#include "base/read_file.h"
#include "tests/traces/trace_test_files.h"
#include "traces/numbers.h"
#include "traces/trace_tools.h"

namespace kvlab {
namespace {

struct Row {
  TraceRequest request;
  std::vector<std::uint64_t> hashes;
};

class ListTrace final : public TraceSource {
 public:
  explicit ListTrace(const std::vector<Row>& rows) : rows_(rows) {}
  bool next(TraceRequest& request) override {
    if (next_ == rows_.size()) return false;
    request = rows_[next_].request;
    request.hashes = rows_[next_].hashes;
    ++next_;
    return true;
  }

 private:
  const std::vector<Row>& rows_;
  std::size_t next_ = 0;
};

std::vector<Row> random_rows() {
  const auto count = *rc::gen::inRange<std::size_t>(1, 30);
  std::vector<Row> rows;
  std::int64_t now = 0;
  for (std::size_t i = 0; i < count; ++i) {
    Row row;
    TraceRequest& r = row.request;
    r.prompt_tokens = *rc::gen::inRange(1, 200);
    r.output_tokens = *rc::gen::inRange(1, 200);
    r.is_follow_up = i > 0 && rows.back().request.session >= 0 && *rc::gen::arbitrary<bool>();
    if (r.is_follow_up)
      r.delay = Span(*rc::gen::inRange<std::int64_t>(0, kMaxTraceNs));
    else
      r.arrival = Time(Span(now += *rc::gen::inRange<std::int64_t>(0, 1'000'000'000'000)));
    r.session = r.is_follow_up ? rows.back().request.session : *rc::gen::inRange<std::int64_t>(-1, 1000);
    if (*rc::gen::arbitrary<bool>()) {
      r.hash_tokens = *rc::gen::inRange(1, 64);
      const int most = (r.prompt_tokens + r.output_tokens) / r.hash_tokens;
      const int num_hashes = *rc::gen::inRange(0, most + 1);
      for (int k = 0; k < num_hashes; ++k) row.hashes.push_back(*rc::gen::arbitrary<std::uint64_t>());
      if (row.hashes.empty()) r.hash_tokens = 0;
    }
    rows.push_back(row);
  }
  return rows;
}

void expect_equal(TraceSource& trace, const std::vector<Row>& rows) {
  const auto facts = [](const TraceRequest& r) {
    return std::tuple(r.arrival, r.is_follow_up, r.delay, r.prompt_tokens, r.output_tokens, r.session, r.hash_tokens);
  };
  TraceRequest r;
  for (const Row& row : rows) {
    RC_ASSERT(trace.next(r));
    RC_ASSERT(facts(r) == facts(row.request));
    RC_ASSERT(std::vector<std::uint64_t>(r.hashes.begin(), r.hashes.end()) == row.hashes);
  }
  RC_ASSERT(!trace.next(r));
}

RC_GTEST_PROP(WriteTrace, EveryFieldComesBack, ()) {
  const TempFolder folder;
  const std::vector<Row> rows = random_rows();
  const std::string name = *rc::gen::element<std::string>("t.csv", "t.jsonl", "t.csv.gz", "t.jsonl.zst");
  ListTrace source(rows);
  RC_ASSERT(write_trace(source, folder.file(name)) == rows.size());
  RC_ASSERT(!std::filesystem::exists(folder.file(name + ".part")));
  expect_equal(*open_trace(folder.file(name)), rows);
  InMemoryTrace held(open_trace(folder.file(name)));
  expect_equal(held, rows);
  held.rewind();
  expect_equal(held, rows);
}

TEST(WriteTrace, PackedByName) {
  const TempFolder folder;
  for (const std::string name : {"t.csv.gz", "t.csv.zst", "t.csv"}) {
    const auto source = trace_of("generate: {requests: 3000, arrival: {poisson: {rate_per_s: 5}}, prompt_tokens: 100, output_tokens: 7}");
    EXPECT_EQ(write_trace(*source, folder.file(name)), 3000U);
  }
  EXPECT_TRUE(read_if_there(folder.file("t.csv.gz")).starts_with("\x1f\x8b"));
  EXPECT_TRUE(read_if_there(folder.file("t.csv.zst")).starts_with("\x28\xb5\x2f\xfd"));
  EXPECT_LT(std::filesystem::file_size(folder.file("t.csv.zst")), std::filesystem::file_size(folder.file("t.csv")) / 2);
  // Concatenated members are one file, whatever its name says.
  const std::string header_and_rows = read_if_there(folder.file("t.csv.gz"));
  std::filesystem::copy(folder.file("t.csv.gz"), folder.file("plain_name"));
  EXPECT_EQ(InMemoryTrace(open_trace(folder.file("plain_name"))).size(), 3000U);
}

TEST(WriteTrace, NothingIsLeftOfATraceThatStops) {
  const TempFolder folder;
  const std::string bad = folder.write("bad.csv", "arrival_ns,prompt_tokens,output_tokens\n0,1,1\n0,0,1\n");
  const auto source = open_trace(bad);
  EXPECT_THROW(write_trace(*source, folder.file("out.csv.gz")), InputError);
  EXPECT_FALSE(std::filesystem::exists(folder.file("out.csv.gz")));
  EXPECT_FALSE(std::filesystem::exists(folder.file("out.csv.gz.part")));
}

TEST(WriteTrace, NameWithoutFormat) {
  const TempFolder folder;
  const auto source = trace_of("generate: {requests: 1, arrival: {poisson: {rate_per_s: 5}}, prompt_tokens: 100, output_tokens: 7}");
  EXPECT_EQ(error_of([&] { write_trace(*source, "out.txt"); }),
            "out.txt: the name of a trace to write ends in .csv or .jsonl, and then in .gz or .zst to pack it");
  EXPECT_EQ(error_of([&] { write_trace(*source, "out.csv", "mooncak"); }),
            "a trace cannot be written as 'mooncak'; did you mean 'mooncake'?");
}

TEST(WriteTrace, MooncakeKeepsSharing) {
  const TempFolder folder;
  const std::string yaml =
      "generate: {requests: 200, arrival: {poisson: {rate_per_s: 5}}, prompt_tokens: {uniform: {min: 1, max: 900}}, output_tokens: 7,"
      " sessions: {turns: 3}, shared_prefix: {num_groups: 3, tokens: 640}, block_tokens: 64}";
  const auto source = trace_of(yaml);
  write_trace(*source, folder.file("m.jsonl"), "mooncake");
  const TraceSummary before = summarize(*trace_of(yaml));
  const TraceSummary after = summarize(*open_trace(folder.file("m.jsonl")));
  EXPECT_EQ(std::tuple(after.num_requests, after.num_follow_ups, after.num_prompt_blocks, after.hash_tokens),
            std::tuple(200U, before.num_follow_ups, before.num_prompt_blocks, 64));
  EXPECT_GT(after.num_seen_blocks, before.num_prompt_blocks / 4);
}

}  // namespace
}  // namespace kvlab
