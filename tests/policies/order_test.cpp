// Orders over the real queues and memory, against sequences derived by hand. Unless a test says otherwise one request runs at a time, a
// step takes a millisecond, and blocks have 4 tokens.
#include <map>
#include <set>
#include <string>

#include "tests/error_of.h"
#include "tests/has_all.h"
#include "tests/policies/replica_driver.h"

namespace kvlab {
namespace {

TEST(OrderScripts, OfFactsRunAsByHand) {
  const Scripts run{"vllm_v1"};
  run("PriorityOrder.SmallestFirstAndEqualOnesByArrival", kOneAtATime, {.order = "priority"},
      {"+ 4,1p5 4,1p-1 4,1p3 4,1p3", "1:4", "2:4", "3:4", "0:4"});
  // 4 blocks. Request 0 runs alone first and takes its third block; request 1 the last one. In step 3 request 1 needs another: request 0
  // gives way, though it was admitted first and has its token in the plan already. Then request 2 goes before it.
  run("PriorityOrder.TheLargestGivesWayThoughItIsPlanned", "{}", {.num_blocks = 4, .order = "priority"},
      {"+ 8,4p9", "0:8", "+ 4,2p1 4,2p2", "0:1 1:4", "1:1; waiting 2 0", "2:4 0:10; preemptions 1"});
  run("PriorityOrder.AdmissionDoesNotPreempt", kOneAtATime, {.order = "priority"}, {"+ 4,3p2", "?", "+ 4,1p1", "0:1"});
  run("PriorityOrder.UnlessAsked", kOneAtATime, {.order = "priority", .order_params = "{preemptive: true}"},
      {"+ 4,3p2", "?", "+ 4,1p1", "1:4"});
  // vLLM v0 takes victims from the end of the order: 3 blocks, and request 0, the less urgent one, makes room for request 1's second block.
  Scripts{"vllm_v0"}("VllmV0TakesVictimsFromTheEndOfTheOrder", "{watermark_frac: 0}", {.num_blocks = 3, .order = "priority"},
                     {"+ 7,3p9 4,3p1", "1:4 0:7", "1:1; waiting 0"});
  run("EdfOrder.EarliestDeadlineFirst", kOneAtATime, {.order = "edf"}, {"+ 4,1t300 4,1t100 4,1t200", "1:4", "2:4", "0:4"});
  run("LongestOutputOrder.TheLongestGoesFirst", kOneAtATime, {.order = "longest_output"}, {"+ 4,1 4,3 4,2", "1:4", "1:1 *2", "2:4"});
}

TEST(PriorityOrder, NamesTheRequestWithoutTheColumn) {
  ReplicaDriver d("vllm_v1", "{}", Memory{.order = "priority"});
  EXPECT_TRUE(d.steps_are({"+ 4,1p1"}));
  EXPECT_NE(error_of([&] { d.arrive(4, 1); }).find("request 1 of the trace (counted from 0) has no 'priority'"), std::string::npos);
}

TEST(OrderScripts, RunAsByHand) {
  const Scripts run{"vllm_v1"};
  // Request 0 has 4 tokens to come when request 1, with 2, takes its place. Request 2 has as many to come as request 1 then, and waits; it
  // goes before request 0, which prefills its prompt and its one token again.
  run("SrptOrder.FewestTokensToComeTakeThePlace", kOneAtATime, {.order = "srpt"},
      {"+ 4,5", "0:4", "+ 4,2", "1:4", "+ 4,1", "1:1; waiting 2 0", "2:4", "0:5", "0:1 *3", "; preemptions 1"});
  // Request 0 is swapped out with 8 of its 20 prompt tokens. It comes back with blocks for all 20: several that came back with a part of
  // their prompts would wait for each other's blocks.
  run("SrptOrder.AHalfComputedPromptComesBackWithRoomForAllOfIt", "{budget_tokens: 8, max_num_seqs: 1}",
      {.num_blocks = 10, .host_blocks = 10, .order = "srpt", .order_params = "{preemption: swap}"},
      {"+ 20,9", "0:8", "+ 4,1", "1:4; copies_out 1", "; free 5",  // the copy is under way
       "copied in", "0:8", "0:4"});
  run("SrptOrder.SwapsWhereAsked", kOneAtATime, {.host_blocks = 10, .order = "srpt", .order_params = "{preemption: swap}"},
      {"+ 4,5", "?", "+ 4,1", "1:4; copies_out 1", "",  // request 0 is on its way back
       "copied in", "0:1"});
  run("LongestPrefixOrder.CachedPrefixesGoFirst", kOneAtATime,
      {.prefix_caching = true, .order = "longest_prefix", .order_params = "{in_batch_tokens: 0}"},
      {"+ 12,1:1:2:3", "0:12", "+ 12,1:7:8:9 12,1:1:5:6 12,1:1:2:4", "3:4",  // 8 tokens are cached
       "2:8", "1:12"});
  // Requests 0 and 1 begin alike and nothing is cached: 1 waits for 0 to fill the cache, and request 2 goes before it.
  run("LongestPrefixOrder.OneOfThoseAlikeFillsTheCache", kOneAtATime,
      {.prefix_caching = true, .order = "longest_prefix", .order_params = "{in_batch_tokens: 4}"},
      {"+ 12,1:1:2:3 12,1:1:2:4 12,1:7:8:9", "0:12", "1:4",  // now it finds 8 tokens
       "2:12"});
  run("LongestPrefixOrder.FirstComeFirstServedAboveItsLimit", kOneAtATime,
      {.prefix_caching = true, .order = "longest_prefix", .order_params = "{most_waiting: 2, in_batch_tokens: 0}"},
      {
          "+ 12,1:1:2:3", "?", "+ 12,1:7:8:9 12,1:5:6:4 12,1:1:2:4", "1:12",  // 3 wait
          "3:4"                                                               // 2 wait
      });
}

TEST(OrderScripts, OfLengthsRunAsByHand) {
  const Scripts run{"vllm_v1"};
  run("SjfOrder.ShortestOutputFirstAndRunningOnesStay", kOneAtATime, {.order = "sjf"}, {"+ 4,3", "0:4", "+ 4,2 4,1", "0:1; waiting 2 1"});
  run("SjfOrder.WithThePrompt", kOneAtATime, {.order = "sjf", .order_params = "{counts_prompt: true}"},
      {"+ 9,1 4,2", "1:4"});  // 6 tokens against 10
  // Windows of 3 requests by prompt: the first three in order of their prompts, though request 3 is shorter than all. Request 4 comes when
  // the second window, not full, has been begun: it waits for that window's requests, and is the first of the next one.
  run("SjfOrder.WindowsAreServedOneAfterTheOther", kOneAtATime,
      {.order = "sjf", .order_params = "{counts_prompt: true, counts_output: false, window: 3}"},
      {"+ 9,1 5,1 7,1 2,1 8,1", "1:5", "2:7", "0:9", "3:2", "+ 1,1 3,1", "4:8", "5:1", "6:3"});
  // Estimates are 4 and 2. Request 0, of 6 tokens in truth, reaches its estimate after 4: doubled, it has 4 more to come, and request 1
  // goes first. Before, request 1 had no fewer to come.
  for (const auto& [order, params] : {std::pair{"srpt", "{}"}, {"alise", "{token_ms: 1, prefill_tokens_per_s: 1e9}"}})
    run("AnEstimateThatIsReachedIsDoubled", kOneAtATime,
        {.order = order, .order_params = params, .predictor = "bucket", .predictor_params = "{max_output_tokens: 4, buckets: 2}"},
        {"+ 4,6", "?", "0:1", "+ 4,2", "0:1", "0:1", "1:4"});
  // Request 0 has 30 tokens to come at 2 ms, and request 1, with 25, is 2 ms younger: it takes the place, but not with 10 tokens per ms.
  for (const auto& [aging, last] : {std::pair{"{}", "1:4"}, {"{aging_per_s: 10000}", "0:1"}})
    run("SrptOrder.AgingKeepsAnOlderRequestRunning", kOneAtATime, {.order = "srpt", .order_params = aging},
        {"+ 4,32", "?", "0:1", "+ 4,25", last});
}

TEST(OrderScripts, OfGainsAndTreesRunAsByHand) {
  const Scripts run{"vllm_v1"};
  // A short context first: as much is gained for fewer tokens. When memory is full, request 0 gives way: ten tokens were delivered, two
  // seconds of reading, so it gains less and has more context.
  run("AndesOrder.WhoIsAheadGivesWayUnderPressure", "{}", {.num_blocks = 4, .order = "andes", .order_params = "{preemption: recompute}"},
      {"+ 4,12", "? *9", "0:1",  // 13 tokens: all 4 blocks
       "+ 8,1 4,1", "2:4 1:8; preemptions 1"});
  run("AndesOrder.NobodyGivesWayWithoutPressure", kOneAtATime,
      {.num_blocks = 100, .order = "andes", .order_params = "{preemption: recompute}"}, {"+ 4,12", "? *10", "+ 4,1", "0:1"});
  // As above, with the batch sought: there is room for request 2 and its next token, and then not for request 1 and its own; request 0
  // gains least. So request 1 is held, though its prompt would fit.
  run("AndesOrder.TheSearchHoldsWhoIsNotInTheBatch", "{}",
      {.num_blocks = 4, .order = "andes", .order_params = "{preemption: recompute, batch_sizes: 3}"},
      {"+ 4,12", "? *10", "+ 8,1 4,1", "2:4; preemptions 1", "1:8"});
  // Prefixes 1-2 and 5-6 are cached. Two requests wait for the first, one for the second, and one has nothing cached. Once one of the two
  // has run the branches weigh the same, and the branch of the older request comes first.
  run("DfsWeightOrder.TheHeavierBranchFirst", kOneAtATime, {.prefix_caching = true, .order = "dfs_weight"},
      {"+ 8,1:1:2", "?", "+ 8,1:5:6", "?", "+ 4,1:9 9,1:5:6 9,1:1:2 12,1:1:2:3", "4:1", "3:1", "5:4", "2:4"});
  // More than most_waiting of them: first come, first served, until fewer wait. Then the branch of two comes first.
  run("DfsWeightOrder.FirstComeFirstServedWhereManyWait", kOneAtATime,
      {.prefix_caching = true, .order = "dfs_weight", .order_params = "{most_waiting: 3}"},
      {"+ 8,1:1:2", "?", "+ 4,1:9 4,1:10 9,1:1:2 9,1:1:2", "1:4", "3:1"});
}

// Room for one request at a time by blocks instead of rows: the one that is overtaken gives its blocks.
TEST(SrptOrder, MakesWayForBlocks) {
  for (const char* scheduler : {"vllm_v1", "sarathi", "fastgen"}) {
    ReplicaDriver d(scheduler, "{}", Memory{.num_blocks = 4, .order = "srpt"});
    EXPECT_TRUE(d.steps_are({"+ 9,6", "0:9", "+ 8,1", "1:8", "0:10; preemptions 1"})) << scheduler;
  }
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

// static, orca and vllm_v0 admit by the order too; what they reserve is theirs to keep.
TEST(Orders, EverySchedulerAdmitsByTheOrder) {
  for (const char* scheduler : {"static", "orca", "vllm_v0", "vllm_v1", "sarathi", "fastgen", "sglang"}) {
    const std::string rows = std::string(scheduler) == "static" ? "{max_batch_seqs: 1}" : kOneAtATime;
    ReplicaDriver d(scheduler, rows, Memory{.max_model_len = 16, .order = "priority"});
    EXPECT_TRUE(d.steps_are({"+ 4,1p5 4,1p1 4,1p3"}));
    std::string order;
    for (int i = 0; i < 3; ++i) order += d.step().substr(0, 1);
    EXPECT_EQ(order, "120") << scheduler;
  }
}

TEST(RandomOrder, EveryRequestIsSometimesFirst) {
  std::map<std::string, int> firsts;
  for (int seed = 1; seed <= 60; ++seed) {
    const auto first = [&] {
      ReplicaDriver d("vllm_v1", kOneAtATime, Memory{.order = "random", .order_params = "{seed: " + std::to_string(seed) + "}"});
      for (int i = 0; i < 3; ++i) d.arrive(4, 1);
      return d.step();
    };
    EXPECT_EQ(first(), first());
    ++firsts[first()];
  }
  for (const char* request : {"0:4", "1:4", "2:4"}) EXPECT_GE(firsts[request], 5) << request << ": 20 of 60 are expected";
}

// Every plan draws anew: the second of the three is not always the same after the first.
TEST(RandomOrder, AllAreServed) {
  ReplicaDriver d("vllm_v1", kOneAtATime, Memory{.order = "random"});
  for (int i = 0; i < 20; ++i) d.arrive(4, 1);
  std::set<std::string> served;
  for (int i = 0; i < 20; ++i) served.insert(d.step());
  EXPECT_EQ(served.size(), 20U);
}

// The text of 24 steps shows one request; at the 25th priorities are drawn anew.
TEST(FastSwitchPriorityOrder, PrioritiesChangeEverySoManySteps) {
  for (const char* pattern : {"{frequency: 0.04}", "{frequency: 0.04, pattern: markov}"}) {
    ReplicaDriver d("vllm_v1", kOneAtATime, Memory{.host_blocks = 100, .order = "fastswitch_priority", .order_params = pattern});
    for (int i = 0; i < 6; ++i) d.arrive(4, 60);
    const std::string first = d.step();
    for (int i = 1; i < 25; ++i) EXPECT_EQ(d.step(), first.substr(0, 2) + "1") << pattern;
    EXPECT_EQ(d.state().counters().preemptions, 0U);
    for (int i = 0; i < 250; ++i) {
      d.step();
      d.finish_copies();
    }
    EXPECT_GT(d.state().counters().preemptions, 0U) << pattern;
    EXPECT_EQ(d.state().counters().swaps, d.state().counters().preemptions);
    EXPECT_EQ(d.state().counters().recomputed_tokens, 0);
  }
}

TEST(Orders, RefuseParameters) {
  struct Case {
    const char *order, *params, *text;
  };
  for (const Case& c : {Case{"sjf", "{counts_output: false}", "needs a length to sort by"},
                        {"sjf", "{window: 3, aging_per_s: 1}", "give one of them"},
                        {"mlfq", "{preemption: keep}", "needs 'swap_ahead_blocks'"},
                        {"mlfq", "{swap_in_first: 2}", "means nothing without"},
                        {"vtc", "{cost: profiled, input_weight: 2}", "'input_weight' and 'output_weight' mean nothing"},
                        {"vtc", "{weights: {7: 0}}", "'7' = 0 is outside"},
                        {"fastswitch_priority", "{stay_frac: 0.5}", ""}})
    EXPECT_THAT(error_of([&] { ReplicaDriver::make<Order>(c.order, c.params); }),
                ::testing::AllOf(HasSubstr(c.text), ::testing::Ne("no error")))
        << c.order << c.params;
}

TEST(VtcOrder, Scripts) {
  const Scripts run{"vllm_v1"};
  // Prompt tokens cost 1, output tokens 2. Clients 7 and 8: after request 0 client 7 has paid 6, so client 8 goes next; then both have paid
  // 6, and client 7 came first.
  run("TheClientWithTheLeastServiceGoesFirst", kOneAtATime, {.order = "vtc"}, {"+ 4,1u7 4,1u7 4,1u8", "0:4; waiting 2 1", "2:4", "1:4"});
  // Client 8 arrives when client 7 has paid 12 and has a request waiting. Lifted to 12 it takes turns with client 7; it has no credit for
  // the time before.
  run("AClientThatWasAwayIsLifted", kOneAtATime, {.order = "vtc"},
      {"+ 4,1u7 4,1u7 4,1u7 4,1u7", "? *2", "+ 4,1u8 4,1u8", "2:4", "4:4", "3:4", "5:4"});
  // The output charged at admission: 10 by default estimate. It is taken back when the request ends after 1.
  run("ChargesThePredictionAndTakesItBack", "{max_num_seqs: 2}",
      {.order = "vtc", .order_params = "{charge_predicted: true}", .predictor = "history", .predictor_params = "{first_tokens: 10}"},
      {
          "+ 4,2u1 4,2u1 20,2u2 4,2u2",
          "0:4 2:20; waiting 1 3",  // 24 and 40 charged at admission
          "0:1 2:1; waiting 1 3"    // 8 and 24 after both ended
      });
  // Client 7 has weight 2: it pays 3 for a request where client 8 pays 6. After requests 0 and 5 it has paid 3 against 6, and so on; at
  // equal counters the client that came first goes first.
  run("AClientOfWeightTwoGetsTwiceAsMuch", kOneAtATime, {.order = "vtc", .order_params = "{weights: {7: 2}}"},
      {"+ 4,1u7 4,1u7 4,1u7 4,1u7 4,1u7 4,1u8 4,1u8 4,1u8", "0:4", "5:4", "1:4", "2:4", "6:4", "3:4", "4:4", "7:4"});
  // Client 7's queue is empty while its request 0 runs. Client 8 comes when three tokens are out, and is lifted to 4 + 6; after request 1
  // it has paid 16, more than client 7's 12.
  run("WithoutWaitingClientsTheLastOneIsTheMeasure", kOneAtATime, {.order = "vtc"},
      {"+ 4,4u7", "? *3", "+ 4,1u8 4,1u8 4,1u7", "0:1", "1:4", "3:4", "2:4"});
  // One block is free. The head of client 2, whose turn it is, needs three; client 3's request of one block has to wait all the same.
  run("AdmissionStopsAtTheFirstHeadThatDoesNotFit", "{}", {.num_blocks = 4, .order = "vtc"},
      {"+ 8,3u1", "?", "+ 12,1u2 4,1u3", "0:1; free 1; waiting 1 2"});
}

// Requests arrive while request 0 runs: 1 of 40 tokens at 1 ms, then one of 4 tokens every millisecond. Without aging each of these goes
// first. At 10 tokens per ms request 1 counts as 40 - 10 (now - 1): at 5 ms, when request 5 of 4 tokens arrives, it counts as 0 and stays
// before it, while those of 4 tokens that came up to 4 ms, 4 + 10 t against 40 + 10, stay before request 1.
TEST(SjfOrder, AgingLetsNoRequestWaitForever) {
  for (const auto& [aging, last] :
       {std::pair{"{}", "0:1; waiting 2 3 4 5 6 7 1"}, {"{aging_per_s: 10000}", "0:1; waiting 2 3 4 1 5 6 7"}}) {
    ReplicaDriver d("vllm_v1", kOneAtATime, Memory{.order = "sjf", .order_params = aging});
    EXPECT_TRUE(d.steps_are({"+ 4,100", "0:4", "+ 4,40"}));
    for (int i = 0; i < 6; ++i) EXPECT_TRUE(d.steps_are({"0:1", "+ 4,4"}));
    EXPECT_TRUE(d.steps_are({last})) << aging;
  }
}

TEST(LearnedTypesOrder, Scripts) {
  const Scripts run{"vllm_v1"};
  // A job of each class in turn while nothing is known.
  for (const char* order : {"etc_u", "ucb_u"})
    run("ClassesTakeTurnsAtFirst", kOneAtATime, {.order = order}, {"+ 4,1k1 4,1k1 4,1k2 4,1k2", "0:4", "2:4"});
  // Class 1 has outputs of 8 tokens, class 2 of 1. Once one of each has ended, the lower bound of class 2 is the lower one.
  run("TheShorterClassGoesFirstOnceItIsKnown", kOneAtATime, {.order = "ucb_u"},
      {"+ 4,8k1 4,8k1 4,8k1 4,1k2 4,1k2 4,1k2", "0:4", "0:1 *7", "3:4", "4:4", "5:4", "1:4"});
  // Turns of 2 tokens: request 0 of the long class gives way after two, request 1 of the short class ends in its turn.
  for (const char* order : {"etc_rr", "ucb_rr"})
    run("TurnsEndAfterTheQuantum", kOneAtATime, {.order = order, .order_params = "{quantum_steps: 2, preemption: recompute}"},
        {"+ 4,50k1 4,2k2", "0:4", "0:1", "1:4", "1:1", "0:6; preemptions 1"});
}

}  // namespace
}  // namespace kvlab
