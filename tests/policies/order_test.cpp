// Orders over the real queues and memory, against sequences derived by hand. Unless a test says otherwise one request runs at a time, a
// step takes a millisecond, and blocks have 4 tokens.
#include "tests/error_of.h"
#include "tests/policies/replica_driver.h"

namespace kvlab {
namespace {

using Memory = ReplicaDriver::Memory;
constexpr const char* kOneAtATime = "{max_num_seqs: 1}";

RequestFacts priority(std::int32_t value) {
  RequestFacts facts;
  facts.priority = value;
  return facts;
}
RequestFacts client(std::int64_t number) {
  RequestFacts facts;
  facts.client = number;
  return facts;
}
RequestFacts ttft(std::int64_t ms) {
  RequestFacts facts;
  facts.ttft_slo = Span(ms * 1'000'000);
  return facts;
}

TEST(PriorityOrder, SmallestFirstAndEqualOnesByArrival) {
  ReplicaDriver d("vllm_v1", kOneAtATime, Memory{.order = "priority"});
  for (const int p : {5, -1, 3, 3}) d.with(priority(p)).arrive(4, 1);
  EXPECT_EQ(d.step(), "1:4");
  EXPECT_EQ(d.step(), "2:4");
  EXPECT_EQ(d.step(), "3:4");
  EXPECT_EQ(d.step(), "0:4");
}

// 4 blocks. Request 0 runs alone first and takes its third block; request 1 the last one. In step 3 request 1 needs another: request 0
// gives way, though it was admitted first and has its token in the plan already. Then request 2 goes before it.
TEST(PriorityOrder, TheLargestGivesWayThoughItIsPlanned) {
  ReplicaDriver d("vllm_v1", "{}", Memory{.num_blocks = 4, .order = "priority"});
  d.with(priority(9)).arrive(8, 4);
  EXPECT_EQ(d.step(), "0:8");
  d.with(priority(1)).arrive(4, 2);
  d.with(priority(2)).arrive(4, 2);
  EXPECT_EQ(d.step(), "0:1 1:4");
  EXPECT_EQ(d.step(), "1:1");
  EXPECT_EQ(d.waiting(), "2 0");
  EXPECT_EQ(d.step(), "2:4 0:10");
  EXPECT_EQ(d.state().counters().preemptions, 1U);
}

TEST(PriorityOrder, AdmissionPreemptsOnlyWhenAsked) {
  for (const bool preemptive : {false, true}) {
    ReplicaDriver d("vllm_v1", kOneAtATime, Memory{.order = "priority", .order_params = preemptive ? "{preemptive: true}" : "{}"});
    d.with(priority(2)).arrive(4, 3);
    d.step();
    d.with(priority(1)).arrive(4, 1);
    EXPECT_EQ(d.step(), preemptive ? "1:4" : "0:1");
  }
}

TEST(PriorityOrder, NamesTheRequestWithoutTheColumn) {
  ReplicaDriver d("vllm_v1", "{}", Memory{.order = "priority"});
  d.with(priority(1)).arrive(4, 1);
  EXPECT_NE(error_of([&] { d.arrive(4, 1); }).find("request 1 of the trace (counted from 0) has no 'priority'"), std::string::npos);
}

TEST(SjfOrder, ShortestOutputFirstAndRunningOnesStay) {
  ReplicaDriver d("vllm_v1", kOneAtATime, Memory{.order = "sjf"});
  d.arrive(4, 3);
  EXPECT_EQ(d.step(), "0:4");
  d.arrive(4, 2);
  d.arrive(4, 1);
  EXPECT_EQ(d.step(), "0:1");
  EXPECT_EQ(d.waiting(), "2 1");
  ReplicaDriver with_prompt("vllm_v1", kOneAtATime, Memory{.order = "sjf", .order_params = "{counts_prompt: true}"});
  with_prompt.arrive(9, 1);
  with_prompt.arrive(4, 2);
  EXPECT_EQ(with_prompt.step(), "1:4") << "6 tokens against 10";
}

// Request 0 has 4 tokens to come when request 1, with 2, takes its place. Request 2 has as many to come as request 1 then, and waits; it
// goes before request 0, which prefills its prompt and its one token again.
TEST(SrptOrder, FewestTokensToComeTakeThePlace) {
  ReplicaDriver d("vllm_v1", kOneAtATime, Memory{.order = "srpt"});
  d.arrive(4, 5);
  EXPECT_EQ(d.step(), "0:4");
  d.arrive(4, 2);
  EXPECT_EQ(d.step(), "1:4");
  d.arrive(4, 1);
  EXPECT_EQ(d.step(), "1:1");
  EXPECT_EQ(d.waiting(), "2 0");
  EXPECT_EQ(d.step(), "2:4");
  EXPECT_EQ(d.step(), "0:5");
  for (int i = 0; i < 3; ++i) EXPECT_EQ(d.step(), "0:1");
  EXPECT_EQ(d.step(), "");
  EXPECT_EQ(d.state().counters().preemptions, 1U);
}

// Estimates are 4 and 2. Request 0, of 6 tokens in truth, reaches its estimate after 4: doubled, it has 4 more to come, and request 1 goes
// first. Before, request 1 had no fewer to come.
TEST(SrptOrder, AnEstimateThatIsReachedIsDoubled) {
  ReplicaDriver d("vllm_v1", kOneAtATime,
                  Memory{.order = "srpt", .predictor = "bucket", .predictor_params = "{max_output_tokens: 4, buckets: 2}"});
  d.arrive(4, 6);
  d.step();
  EXPECT_EQ(d.step(), "0:1");
  d.arrive(4, 2);
  EXPECT_EQ(d.step(), "0:1");
  EXPECT_EQ(d.step(), "0:1");
  EXPECT_EQ(d.step(), "1:4");
}

// Room for one request at a time by blocks instead of rows: the one that is overtaken gives its blocks.
TEST(SrptOrder, MakesWayForBlocks) {
  for (const char* scheduler : {"vllm_v1", "sarathi", "fastgen"}) {
    ReplicaDriver d(scheduler, "{}", Memory{.num_blocks = 4, .order = "srpt"});
    d.arrive(9, 6);
    EXPECT_EQ(d.step(), "0:9") << scheduler;
    d.arrive(8, 1);
    EXPECT_EQ(d.step(), "1:8") << scheduler;
    EXPECT_EQ(d.step(), "0:10") << scheduler;
    EXPECT_EQ(d.state().counters().preemptions, 1U) << scheduler;
  }
}

// What is swapped out comes back without being computed again.
TEST(SrptOrder, SwapsWhereAsked) {
  ReplicaDriver d("vllm_v1", kOneAtATime, Memory{.host_blocks = 10, .order = "srpt", .order_params = "{preemption: swap}"});
  d.arrive(4, 5);
  d.step();
  d.arrive(4, 1);
  EXPECT_EQ(d.step(), "1:4");
  EXPECT_EQ(d.copies_out().size(), 1U);
  EXPECT_EQ(d.step(), "") << "request 0 is on its way back";
  d.finish_copies();
  EXPECT_EQ(d.step(), "0:1");
}

// Quanta of 2 and 4 ms. Request 0 has used 3 ms, more than the first, after step 3, and is at the second level from then on.
TEST(MlfqOrder, DemotesAfterTheQuantum) {
  ReplicaDriver d("vllm_v1", kOneAtATime,
                  Memory{.order = "mlfq", .order_params = "{quantum_ms: 2, prefill_tokens_per_s: 1e9, preemption: recompute}"});
  d.arrive(4, 10);
  EXPECT_EQ(d.step(), "0:4");
  EXPECT_EQ(d.step(), "0:1");
  d.arrive(4, 2);
  EXPECT_EQ(d.step(), "0:1") << "same level: nobody gives way";
  EXPECT_EQ(d.step(), "1:4");
  EXPECT_EQ(d.step(), "1:1");
  EXPECT_EQ(d.step(), "0:7") << "4 prompt tokens and 3 of the output again";
}

// A prompt of 400 tokens takes 4 ms at 100 000 tokens per second, which is the second level's quantum: a short request goes before it.
TEST(MlfqOrder, LongPromptsSkipLevels) {
  ReplicaDriver d("vllm_v1", kOneAtATime,
                  Memory{.order = "mlfq", .order_params = "{quantum_ms: 2, prefill_tokens_per_s: 1e5, preemption: recompute}"});
  d.arrive(400, 1);
  d.arrive(4, 1);
  EXPECT_EQ(d.step(), "1:4");
  EXPECT_EQ(d.step(), "0:400");
}

// Request 0 is at the second level. While short requests keep coming it waits; after 3 ms without service it is promoted, and goes
// before those that came later.
TEST(MlfqOrder, TheStarvedArePromoted) {
  const auto wait_of = [](const char* starvation) {
    ReplicaDriver d("vllm_v1", kOneAtATime,
                    Memory{.order = "mlfq",
                           .order_params = std::string("{quantum_ms: 2, prefill_tokens_per_s: 1e5, scan_steps: 1, starvation_ms: ") +
                                           starvation + "}"});
    d.arrive(400, 1);
    for (int i = 0; i < 12; ++i) {
      d.arrive(4, 1);
      d.arrive(4, 1);
      if (d.step() == "0:400") return i;
    }
    return -1;
  };
  EXPECT_EQ(wait_of("0"), -1);
  EXPECT_GE(wait_of("3"), 3);
}

// 10 blocks, of which 3 are to stay free. After step 2 both requests have 4 of them, so request 1 is copied out while request 0 goes on;
// its blocks are free when the copy has ended. It would leave 2 free and stays out until request 0 is done.
TEST(MlfqOrder, SwapsTheLastOutBeforeMemoryIsFull) {
  ReplicaDriver d("vllm_v1", "{}",
                  Memory{.num_blocks = 10,
                         .host_blocks = 100,
                         .order = "mlfq",
                         .order_params = "{quantum_ms: 1e5, prefill_tokens_per_s: 1e9, swap_ahead_blocks: 3}"});
  d.arrive(12, 20);
  d.arrive(12, 20);
  EXPECT_EQ(d.step(), "0:12 1:12");
  EXPECT_EQ(d.step(), "0:1 1:1");
  EXPECT_EQ(d.step(), "0:1");
  ASSERT_EQ(d.copies_out().size(), 1U);
  EXPECT_TRUE(d.copies_out()[0].is_ahead);
  EXPECT_EQ(d.free_blocks(), 2);
  EXPECT_EQ(d.step(), "0:1") << "the copy under way counts: no other leaves";
  d.finish_copies_out();
  EXPECT_EQ(d.free_blocks(), 6);
  for (int i = 0; i < 16; ++i) EXPECT_EQ(d.step(), "0:1") << i;
  EXPECT_EQ(d.step(), "") << "request 1 is on its way back";
  d.finish_copies();
  EXPECT_EQ(d.step(), "1:1");
  EXPECT_EQ(d.state().counters().swaps, 1U);
  EXPECT_EQ(d.state().counters().recomputed_tokens, 0);
}

// CPU memory of 4 blocks is full: request 2 is held, unless the floor is 0.
TEST(MlfqOrder, NewPromptsAreHeldWhileCpuMemoryIsShort) {
  for (const std::string floor : {"0.1", "0"}) {
    ReplicaDriver d(
        "vllm_v1", "{}",
        Memory{.num_blocks = 10,
               .host_blocks = 4,
               .order = "mlfq",
               .order_params = "{quantum_ms: 1e5, prefill_tokens_per_s: 1e9, swap_ahead_blocks: 3, cpu_floor_frac: " + floor + "}"});
    d.arrive(12, 20);
    d.arrive(12, 20);
    for (int i = 0; i < 3; ++i) d.step();
    d.arrive(4, 1);
    EXPECT_EQ(d.step(), floor == "0" ? "0:1 2:4" : "0:1");
  }
}

// One row and 3 of 6 blocks free when request 1 overtakes: with 3 blocks to take it lets request 0 keep its own, with 4 it does not.
TEST(MlfqOrder, PreemptedRequestsStayOnTheGpuWhereTheyFit) {
  for (const std::int32_t prompt : {12, 16}) {
    ReplicaDriver d("vllm_v1", kOneAtATime,
                    Memory{.num_blocks = 6,
                           .host_blocks = 100,
                           .order = "mlfq",
                           .order_params = "{quantum_ms: 2, prefill_tokens_per_s: 1e5, preemption: keep, swap_ahead_blocks: 1}"});
    d.arrive(8, 20);
    for (int i = 0; i < 3; ++i) d.step();
    EXPECT_EQ(d.free_blocks(), 3);
    d.arrive(prompt, 1);
    EXPECT_EQ(d.step(), "1:" + std::to_string(prompt));
    EXPECT_EQ(d.copies_out().size(), prompt == 12 ? 0U : 1U);
    EXPECT_EQ(d.step(), prompt == 12 ? "0:1" : "") << "in the GPU's memory, or on its way back";
    EXPECT_EQ(d.state().counters().preemptions, 1U);
    EXPECT_EQ(d.state().counters().recomputed_tokens, 0);
  }
}

// 9 blocks, of which 4 are to stay free; request 1 leaves 3, so that request 0, which waits on the GPU, is copied out.
TEST(MlfqOrder, ThoseThatWaitOnTheGpuLeaveFirst) {
  ReplicaDriver d("vllm_v1", kOneAtATime,
                  Memory{.num_blocks = 9,
                         .host_blocks = 100,
                         .order = "mlfq",
                         .order_params = "{quantum_ms: 2, prefill_tokens_per_s: 1e5, preemption: keep, swap_ahead_blocks: 4}"});
  d.arrive(8, 20);
  for (int i = 0; i < 3; ++i) d.step();
  d.arrive(12, 3);
  EXPECT_EQ(d.step(), "1:12");
  EXPECT_TRUE(d.copies_out().empty());
  EXPECT_EQ(d.step(), "1:1");
  ASSERT_EQ(d.copies_out().size(), 1U);
  EXPECT_TRUE(d.copies_out()[0].is_ahead);
  EXPECT_EQ(d.free_blocks(), 2);
  d.finish_copies_out();
  EXPECT_EQ(d.free_blocks(), 5);
  EXPECT_EQ(d.state().counters().preemptions, 1U);
}

TEST(MlfqOrder, KeepingNeedsAWayOut) {
  EXPECT_NE(error_of([] { ReplicaDriver::make<Order>("mlfq", "{preemption: keep}"); }).find("needs 'swap_ahead_blocks'"),
            std::string::npos);
  EXPECT_NE(error_of([] { ReplicaDriver::make<Order>("mlfq", "{swap_in_first: 2}"); }).find("means nothing without"), std::string::npos);
}

// One row. Request 0 has gone down a level and is overtaken by request 1; it is copied back while request 1 still runs, and has its row as
// soon as that ends.
TEST(MlfqOrder, ComesBackAheadOfItsTurn) {
  for (const bool ahead : {false, true}) {
    ReplicaDriver d(
        "vllm_v1", kOneAtATime,
        Memory{.host_blocks = 100,
               .order = "mlfq",
               .order_params = std::string("{quantum_ms: 2, prefill_tokens_per_s: 1e5, swap_ahead_blocks: ") + (ahead ? "1}" : "0}")});
    d.arrive(4, 10);
    for (int i = 0; i < 3; ++i) d.step();
    d.arrive(4, 2);
    EXPECT_EQ(d.step(), "1:4");
    EXPECT_EQ(d.step(), "1:1");
    EXPECT_EQ(d.copies_in().size(), ahead ? 1U : 0U);
    d.finish_copies();
    EXPECT_EQ(d.step(), ahead ? "0:1" : "");
  }
}

// Prompt tokens cost 1, output tokens 2. Clients 7 and 8: after request 0 client 7 has paid 6, so client 8 goes next; then both have paid
// 6, and client 7 came first.
TEST(VtcOrder, TheClientWithTheLeastServiceGoesFirst) {
  ReplicaDriver d("vllm_v1", kOneAtATime, Memory{.order = "vtc"});
  d.with(client(7)).arrive(4, 1);
  d.with(client(7)).arrive(4, 1);
  d.with(client(8)).arrive(4, 1);
  EXPECT_EQ(d.step(), "0:4");
  EXPECT_EQ(d.waiting(), "2 1");
  EXPECT_EQ(d.step(), "2:4");
  EXPECT_EQ(d.step(), "1:4");
}

// Client 8 arrives when client 7 has paid 12 and has a request waiting. Lifted to 12 it takes turns with client 7; it has no credit for the
// time before.
TEST(VtcOrder, AClientThatWasAwayIsLifted) {
  ReplicaDriver d("vllm_v1", kOneAtATime, Memory{.order = "vtc"});
  for (int i = 0; i < 4; ++i) d.with(client(7)).arrive(4, 1);
  d.step();
  d.step();
  for (int i = 0; i < 2; ++i) d.with(client(8)).arrive(4, 1);
  EXPECT_EQ(d.step(), "2:4");
  EXPECT_EQ(d.step(), "4:4");
  EXPECT_EQ(d.step(), "3:4");
  EXPECT_EQ(d.step(), "5:4");
}

// The output charged at admission: 10 by default estimate. It is taken back when the request ends after 1.
TEST(VtcOrder, ChargesThePredictionAndTakesItBack) {
  ReplicaDriver d(
      "vllm_v1", "{max_num_seqs: 2}",
      Memory{.order = "vtc", .order_params = "{charge_predicted: true}", .predictor = "history", .predictor_params = "{first_tokens: 10}"});
  d.with(client(1)).arrive(4, 2);
  d.with(client(1)).arrive(4, 2);
  d.with(client(2)).arrive(20, 2);
  d.with(client(2)).arrive(4, 2);
  EXPECT_EQ(d.step(), "0:4 2:20") << "24 and 40 charged at admission";
  EXPECT_EQ(d.waiting(), "1 3");
  EXPECT_EQ(d.step(), "0:1 2:1");
  EXPECT_EQ(d.waiting(), "1 3") << "8 and 24 after both ended";
}

// Client 7 has weight 2: it pays 3 for a request where client 8 pays 6. After requests 0 and 5 it stands at 3 against 6, and so on; at
// equal counters the client that came first goes first.
TEST(VtcOrder, AClientOfWeightTwoGetsTwiceAsMuch) {
  ReplicaDriver d("vllm_v1", kOneAtATime, Memory{.order = "vtc", .order_params = "{weights: {7: 2}}"});
  for (int i = 0; i < 5; ++i) d.with(client(7)).arrive(4, 1);
  for (int i = 0; i < 3; ++i) d.with(client(8)).arrive(4, 1);
  std::string order;
  for (int i = 0; i < 8; ++i) order += d.step().substr(0, 1);
  EXPECT_EQ(order, "05126347");
}

// Client 7's queue is empty while its request 0 runs. Client 8 comes when three tokens are out, and is lifted to 4 + 6; after request 1 it
// has paid 16, more than client 7's 12.
TEST(VtcOrder, WithoutWaitingClientsTheLastOneIsTheMeasure) {
  ReplicaDriver d("vllm_v1", kOneAtATime, Memory{.order = "vtc"});
  d.with(client(7)).arrive(4, 4);
  for (int i = 0; i < 3; ++i) d.step();
  d.with(client(8)).arrive(4, 1);
  d.with(client(8)).arrive(4, 1);
  d.with(client(7)).arrive(4, 1);
  EXPECT_EQ(d.step(), "0:1");
  EXPECT_EQ(d.step(), "1:4");
  EXPECT_EQ(d.step(), "3:4");
  EXPECT_EQ(d.step(), "2:4");
}

// One block is free. The head of client 2, whose turn it is, needs three; client 3's request of one block has to wait all the same.
TEST(VtcOrder, AdmissionStopsAtTheFirstHeadThatDoesNotFit) {
  ReplicaDriver d("vllm_v1", "{}", Memory{.num_blocks = 4, .order = "vtc"});
  d.with(client(1)).arrive(8, 3);
  d.step();
  d.with(client(2)).arrive(12, 1);
  d.with(client(3)).arrive(4, 1);
  EXPECT_EQ(d.step(), "0:1");
  EXPECT_EQ(d.free_blocks(), 1);
  EXPECT_EQ(d.waiting(), "1 2");
}

TEST(VtcOrder, RefusesWeightsOfTokensBesideTheProfiledCost) {
  const auto error = [](const std::string& params) { return error_of([&] { ReplicaDriver::make<Order>("vtc", params); }); };
  EXPECT_NE(error("{cost: profiled, input_weight: 2}").find("'input_weight' and 'output_weight' mean nothing"), std::string::npos);
  EXPECT_NE(error("{weights: {7: 0}}").find("'7' = 0 is outside"), std::string::npos) << error("{weights: {7: 0}}");
}

TEST(EdfOrder, EarliestDeadlineFirst) {
  ReplicaDriver d("vllm_v1", kOneAtATime, Memory{.order = "edf"});
  for (const int ms : {300, 100, 200}) d.with(ttft(ms)).arrive(4, 1);
  EXPECT_EQ(d.step(), "1:4");
  EXPECT_EQ(d.step(), "2:4");
  EXPECT_EQ(d.step(), "0:4");
}

TEST(LongestPrefixOrder, CachedPrefixesGoFirst) {
  ReplicaDriver d("vllm_v1", kOneAtATime,
                  Memory{.prefix_caching = true, .order = "longest_prefix", .order_params = "{in_batch_tokens: 0}"});
  d.arrive(12, 1, {1, 2, 3});
  EXPECT_EQ(d.step(), "0:12");
  d.arrive(12, 1, {7, 8, 9});
  d.arrive(12, 1, {1, 5, 6});
  d.arrive(12, 1, {1, 2, 4});
  EXPECT_EQ(d.step(), "3:4") << "8 tokens are cached";
  EXPECT_EQ(d.step(), "2:8");
  EXPECT_EQ(d.step(), "1:12");
}

// Requests 0 and 1 begin alike and nothing is cached: 1 waits for 0 to fill the cache, and request 2 goes before it.
TEST(LongestPrefixOrder, OneOfThoseAlikeFillsTheCache) {
  ReplicaDriver d("vllm_v1", kOneAtATime,
                  Memory{.prefix_caching = true, .order = "longest_prefix", .order_params = "{in_batch_tokens: 4}"});
  d.arrive(12, 1, {1, 2, 3});
  d.arrive(12, 1, {1, 2, 4});
  d.arrive(12, 1, {7, 8, 9});
  EXPECT_EQ(d.step(), "0:12");
  EXPECT_EQ(d.step(), "1:4") << "now it finds 8 tokens";
  EXPECT_EQ(d.step(), "2:12");
}

TEST(LongestPrefixOrder, FirstComeFirstServedAboveItsLimit) {
  ReplicaDriver d("vllm_v1", kOneAtATime,
                  Memory{.prefix_caching = true, .order = "longest_prefix", .order_params = "{most_waiting: 2, in_batch_tokens: 0}"});
  d.arrive(12, 1, {1, 2, 3});
  d.step();
  d.arrive(12, 1, {7, 8, 9});
  d.arrive(12, 1, {5, 6, 4});
  d.arrive(12, 1, {1, 2, 4});
  EXPECT_EQ(d.step(), "1:12") << "3 wait";
  EXPECT_EQ(d.step(), "3:4") << "2 wait";
}

// A short context first: as much is gained for fewer tokens. When memory is full, request 0 gives way: ten tokens were delivered, two
// seconds of reading, so it gains less and has more context.
TEST(AndesOrder, WhoIsAheadGivesWayUnderPressure) {
  ReplicaDriver d("vllm_v1", "{}", Memory{.num_blocks = 4, .order = "andes", .order_params = "{preemption: recompute}"});
  d.arrive(4, 12);
  std::string last;
  for (int i = 0; i < 10; ++i) last = d.step();
  EXPECT_EQ(last, "0:1") << "13 tokens: all 4 blocks";
  d.arrive(8, 1);
  d.arrive(4, 1);
  EXPECT_EQ(d.step(), "2:4 1:8");
  EXPECT_EQ(d.state().counters().preemptions, 1U);
}

TEST(AndesOrder, NobodyGivesWayWithoutPressure) {
  ReplicaDriver d("vllm_v1", kOneAtATime, Memory{.num_blocks = 100, .order = "andes", .order_params = "{preemption: recompute}"});
  d.arrive(4, 12);
  for (int i = 0; i < 10; ++i) d.step();
  d.arrive(4, 1);
  EXPECT_EQ(d.step(), "0:1");
}

// As above, with the batch sought: there is room for request 2 and its next token, and then not for request 1 and its own; request 0 gains
// least. So request 1 is held, though its prompt alone would fit.
TEST(AndesOrder, TheSearchHoldsWhoIsNotInTheBatch) {
  ReplicaDriver d("vllm_v1", "{}", Memory{.num_blocks = 4, .order = "andes", .order_params = "{preemption: recompute, batch_sizes: 3}"});
  d.arrive(4, 12);
  for (int i = 0; i < 10; ++i) d.step();
  d.arrive(8, 1);
  d.arrive(4, 1);
  EXPECT_EQ(d.step(), "2:4");
  EXPECT_EQ(d.state().counters().preemptions, 1U);
  EXPECT_EQ(d.step(), "1:8");
}

// Two rows, and steps that are slower than anybody reads: there is pressure all the time, and memory for all, so that every preemption is
// the order's own.
TEST(AndesOrder, OnAverageNobodyIsPreemptedTwice) {
  for (const std::string sizes : {"0", "4"}) {
    ReplicaDriver d(
        "vllm_v1", "{max_num_seqs: 2}",
        Memory{.order = "andes",
               .order_params = "{ttft_ms: 1, tokens_per_s: 2000, horizon_s: 0.05, preemption: recompute, batch_sizes: " + sizes + "}"});
    std::uint64_t arrived = 0;
    for (int i = 0; i < 300; ++i) {
      if (i % 10 == 0) {
        d.arrive(4 + i % 7, 20);
        ++arrived;
      }
      d.step();
      EXPECT_LE(d.state().counters().preemptions, arrived) << sizes << " " << i;
    }
    EXPECT_GT(d.left().size(), 5U) << sizes;
  }
}

// A token takes 1 ms, and so does each token of a prompt: 60 ms to come for request 1, 54 for request 0, which has the longer output.
TEST(AliseOrder, ShortestPredictedTimeFirst) {
  const char* params = "{token_ms: 1, prefill_tokens_per_s: 1000, first_queue_ms: 1000}";
  ReplicaDriver d("vllm_v1", kOneAtATime, Memory{.order = "alise", .order_params = params});
  d.arrive(40, 20);
  d.arrive(4, 50);
  EXPECT_EQ(d.step(), "1:4");
}

TEST(AliseOrder, AnEstimateThatIsReachedIsDoubled) {
  ReplicaDriver d("vllm_v1", kOneAtATime,
                  Memory{.order = "alise",
                         .order_params = "{token_ms: 1, prefill_tokens_per_s: 1e9}",
                         .predictor = "bucket",
                         .predictor_params = "{max_output_tokens: 4, buckets: 2}"});
  d.arrive(4, 6);
  d.step();
  EXPECT_EQ(d.step(), "0:1");
  d.arrive(4, 2);
  EXPECT_EQ(d.step(), "0:1");
  EXPECT_EQ(d.step(), "0:1");
  EXPECT_EQ(d.step(), "1:4");
}

// Request 0 has 100 ms to come: the last of the queues of 10, 20, 40 ms and more. It is queued at 1 ms; promoted every 3 ms, it is in the
// first queue at 10 ms, after those that are shorter, and before all at 13 ms.
TEST(AliseOrder, TheAgedArePromoted) {
  const auto wait_of = [](const std::string& age) {
    ReplicaDriver d(
        "vllm_v1", kOneAtATime,
        Memory{.order = "alise", .order_params = "{token_ms: 1, prefill_tokens_per_s: 1e9, first_queue_ms: 10, age_s: " + age + "}"});
    d.arrive(4, 100);
    for (int i = 0; i < 20; ++i) {
      d.arrive(4, 1);
      d.arrive(4, 1);
      if (d.step() == "0:4") return i;
    }
    return -1;
  };
  EXPECT_EQ(wait_of("1000"), -1);
  EXPECT_EQ(wait_of("0.003"), 12);
}

RequestFacts of_class(const char* name) {
  RequestFacts facts;
  facts.request_class = ClassName(name);
  return facts;
}

// A job of each class in turn while nothing is known.
TEST(LearnedTypesOrder, ClassesTakeTurnsAtFirst) {
  for (const char* order : {"etc_u", "ucb_u"}) {
    ReplicaDriver d("vllm_v1", kOneAtATime, Memory{.order = order});
    for (const char* name : {"a", "a", "b", "b"}) d.with(of_class(name)).arrive(4, 1);
    EXPECT_EQ(d.step(), "0:4") << order;
    EXPECT_EQ(d.step(), "2:4") << order;
  }
}

// Class a has outputs of 8 tokens, class b of 1. Once one of each has ended, the lower bound of b is the lower one.
TEST(LearnedTypesOrder, TheShorterClassGoesFirstOnceItIsKnown) {
  ReplicaDriver d("vllm_v1", kOneAtATime, Memory{.order = "ucb_u"});
  for (int i = 0; i < 3; ++i) d.with(of_class("a")).arrive(4, 8);
  for (int i = 0; i < 3; ++i) d.with(of_class("b")).arrive(4, 1);
  for (int i = 0; i < 8; ++i) EXPECT_EQ(d.step().substr(0, 1), "0");
  for (const char* next : {"3:4", "4:4", "5:4", "1:4"}) EXPECT_EQ(d.step(), next);
}

// Turns of 2 tokens: request 0 of the long class gives way after two, request 1 of the short class ends in its turn.
TEST(LearnedTypesOrder, TurnsEndAfterTheQuantum) {
  for (const char* order : {"etc_rr", "ucb_rr"}) {
    ReplicaDriver d("vllm_v1", kOneAtATime, Memory{.order = order, .order_params = "{quantum_steps: 2, preemption: recompute}"});
    d.with(of_class("a")).arrive(4, 50);
    d.with(of_class("b")).arrive(4, 2);
    EXPECT_EQ(d.step(), "0:4") << order;
    EXPECT_EQ(d.step(), "0:1") << order;
    EXPECT_EQ(d.step(), "1:4") << order;
    EXPECT_EQ(d.step(), "1:1") << order;
    EXPECT_EQ(d.step(), "0:6") << order;
    EXPECT_EQ(d.state().counters().preemptions, 1U) << order;
  }
}

// static, orca and vllm_v0 admit by the order too; what they reserve is theirs to keep.
TEST(Orders, EverySchedulerAdmitsByTheOrder) {
  for (const char* scheduler : {"static", "orca", "vllm_v0", "vllm_v1", "sarathi", "fastgen"}) {
    const std::string rows = std::string(scheduler) == "static" ? "{max_batch_seqs: 1}" : kOneAtATime;
    ReplicaDriver d(scheduler, rows, Memory{.max_model_len = 16, .order = "priority"});
    for (const int p : {5, 1, 3}) d.with(priority(p)).arrive(4, 1);
    std::string order;
    for (int i = 0; i < 3; ++i) order += d.step().substr(0, 1);
    EXPECT_EQ(order, "120") << scheduler;
  }
}

// vLLM v0 takes victims from the end of the order: 3 blocks, and request 0, the less urgent one, makes room for request 1's second block.
TEST(Orders, VllmV0TakesVictimsFromTheEndOfTheOrder) {
  ReplicaDriver d("vllm_v0", "{watermark_frac: 0}", Memory{.num_blocks = 3, .order = "priority"});
  d.with(priority(9)).arrive(7, 3);
  d.with(priority(1)).arrive(4, 3);
  EXPECT_EQ(d.step(), "1:4 0:7");
  EXPECT_EQ(d.step(), "1:1");
  EXPECT_EQ(d.waiting(), "0");
}

}  // namespace
}  // namespace kvlab
