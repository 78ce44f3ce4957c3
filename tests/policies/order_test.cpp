// Orders over the real queues and memory, against sequences derived by hand. Unless a test says otherwise one request runs at a time, a
// step takes a millisecond, and blocks have 4 tokens.
#include <map>
#include <set>

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

// Orders that preempt and swap by levels, against sequences derived by hand. A step takes a millisecond, and blocks have 4 tokens.

Memory ordered(const char* order, const std::string& params, std::uint32_t num_blocks = 1000, std::int64_t host_blocks = 0) {
  return {.num_blocks = num_blocks, .host_blocks = host_blocks, .order = order, .order_params = params};
}

TEST(OrderScripts, WithSwapsRunAsByHand) {
  const Scripts run{"vllm_v1"};
  // Quanta of 2 and 4 ms. Request 0 has used 3 ms, more than the first, after step 3, and is at the second level from then on.
  run("MlfqOrder.DemotesAfterTheQuantum", kOneAtATime, ordered("mlfq", "{quantum_ms: 2, prefill_tokens_per_s: 1e9, preemption: recompute}"),
      {
          "+ 4,10", "0:4", "0:1", "+ 4,2", "0:1",  // same level: no preemption
          "1:4", "1:1", "0:7"                      // 4 prompt tokens and 3 of the output again
      });
  // Every step is longer than any quantum, so each request falls a level per step, down to the last of three. There no request overtakes,
  // and the two do not take turns for ever.
  run("MlfqOrder.QuantaBelowAStepEndInTheLastLevel", kOneAtATime,
      ordered("mlfq", "{quantum_ms: 0.1, levels: 3, prefill_tokens_per_s: 1e9, preemption: recompute}"),
      {"+ 4,10", "? *4", "+ 4,4", "1:4", "1:1 *3", "0:8; preemptions 1"});
  // A prompt of 400 tokens takes 4 ms at 100 000 tokens per second, which is the second level's quantum: a short request goes before it.
  run("MlfqOrder.LongPromptsSkipLevels", kOneAtATime, ordered("mlfq", "{quantum_ms: 2, prefill_tokens_per_s: 1e5, preemption: recompute}"),
      {"+ 400,1 4,1", "1:4", "0:400"});
  // A token takes 1 ms, and so does each token of a prompt: 60 ms to come for request 1, 54 for request 0, which has the longer output.
  run("AliseOrder.ShortestPredictedTimeFirst", kOneAtATime,
      ordered("alise", "{token_ms: 1, prefill_tokens_per_s: 1000, first_queue_ms: 1000}"), {"+ 40,20 4,50", "1:4"});
}

// Steps until one is `text`, while two short requests come before each of them; -1: not in the first 20.
int wait_for(const std::string& text, ReplicaDriver d) {
  for (int i = 0; i < 20; ++i) {
    EXPECT_TRUE(d.steps_are({"+ 4,1 4,1"}));
    if (d.step() == text) return i;
  }
  return -1;
}

ReplicaDriver with_first(const std::string& arrival, const char* order, const std::string& params) {
  ReplicaDriver d("vllm_v1", kOneAtATime, ordered(order, params));
  EXPECT_TRUE(d.steps_are({arrival}));
  return d;
}

// Request 0 is at the second level. While short requests keep coming it waits; after 3 ms without service it is promoted, and goes
// before those that came later.
TEST(MlfqOrder, TheStarvedArePromoted) {
  const std::string params = "{quantum_ms: 2, prefill_tokens_per_s: 1e5, scan_steps: 1, starvation_ms: ";
  EXPECT_EQ(wait_for("0:400", with_first("+ 400,1", "mlfq", params + "0}")), -1);
  EXPECT_GE(wait_for("0:400", with_first("+ 400,1", "mlfq", params + "3}")), 3);
}

TEST(OrderScripts, WithSwapsAheadRunAsByHand) {
  const Scripts run{"vllm_v1"};
  const std::string level = "{quantum_ms: 2, prefill_tokens_per_s: 1e5, ", last_level = "{quantum_ms: 1e5, prefill_tokens_per_s: 1e9, ";
  // 10 blocks, of which 3 are to stay free. After step 2 both requests have 4 of them, so request 1 is copied out while request 0
  // continues; its blocks are free when the copy has ended. It would leave 2 free and stays out until request 0 is done.
  run("MlfqOrder.SwapsTheLastOutBeforeMemoryIsFull", "{}", ordered("mlfq", last_level + "swap_ahead_blocks: 3}", 10, 100),
      {"+ 12,20 12,20", "0:12 1:12", "0:1 1:1", "0:1; copies_out 1; free 2",
       "0:1",                                // the copy under way counts: no other leaves
       "copied out; free 6", "0:1 *16", "",  // request 1 is on its way back
       "copied in", "1:1; swaps 1; recomputed 0"});
  // CPU memory of 4 blocks is full: request 2 is held, unless the floor is 0.
  for (const auto& [floor, step] : {std::pair{"0.1}", "0:1"}, {"0}", "0:1 2:4"}})
    run("MlfqOrder.NewPromptsAreHeldWhileCpuMemoryIsShort", "{}",
        ordered("mlfq", last_level + "swap_ahead_blocks: 3, cpu_floor_frac: " + floor, 10, 4), {"+ 12,20 12,20", "? *3", "+ 4,1", step});
  // One row and 3 of 6 blocks free when request 1 overtakes: with 3 blocks to take it lets request 0 keep its own, with 4 it does not: its
  // last step is in the GPU's memory, or it is on its way back.
  const Memory keeping = ordered("mlfq", level + "preemption: keep, swap_ahead_blocks: 1}", 6, 100);
  run("MlfqOrder.PreemptedRequestsStayOnTheGpuWhereTheyFit", kOneAtATime, keeping,
      {"+ 8,16", "? *3; free 3", "+ 12,1", "1:12; copies_out 0", "0:1; preemptions 1; recomputed 0"});
  run("MlfqOrder.AndLeaveWhereTheyDoNot", kOneAtATime, keeping,
      {"+ 8,16", "? *3; free 3", "+ 16,1", "1:16; copies_out 1", "; preemptions 1; recomputed 0"});
  // 9 blocks, of which 4 are to stay free; request 1 leaves 3, so that request 0, which waits on the GPU, is copied out.
  run("MlfqOrder.ThoseThatWaitOnTheGpuLeaveFirst", kOneAtATime, ordered("mlfq", level + "preemption: keep, swap_ahead_blocks: 4}", 9, 100),
      {"+ 8,20", "? *3", "+ 12,3", "1:12; copies_out 0", "1:1; copies_out 1; free 2", "copied out; free 5; preemptions 1"});
  // One row. Request 0 has gone down a level and is overtaken by request 1; it is copied back while request 1 still runs, and has its row
  // as soon as that ends.
  for (const auto& [ahead, second, last] : {std::tuple{"0}", "1:1; copies_in 0", ""}, {"1}", "1:1; copies_in 1", "0:1"}})
    run("MlfqOrder.ComesBackAheadOfItsTurn", kOneAtATime, ordered("mlfq", level + "swap_ahead_blocks: " + ahead, 1000, 100),
        {"+ 4,10", "? *3", "+ 4,2", "1:4", second, "copied in", last});
}

// Request 0 is overtaken after 24 of its 40 prompt tokens, and comes back with room for all 10 blocks: with less it could wait for the
// rest while others wait for its blocks.
TEST(MlfqOrder, ComesBackWithRoomForItsWholePrompt) {
  ReplicaDriver d("vllm_v1", "{max_num_seqs: 1, budget_tokens: 8}",
                  ordered("mlfq", "{quantum_ms: 2, prefill_tokens_per_s: 1e5, swap_ahead_blocks: 1}", 1000, 100));
  ASSERT_TRUE(d.steps_are({"+ 40,2", "0:8 *3", "+ 4,2", "1:4", "1:1; copies_in 1"}));
  EXPECT_EQ(d.state().info(d.copies_in()[0].request).blocks.size(), 10U);
  EXPECT_TRUE(d.steps_are({"copied in", "0:8"}));
}

// A prompt of 3,000 tokens passes 8 layers in 8 steps of 1 ms, so another takes 8 ms: with 4 tokens of output it has more to come than a
// short prompt with 8. A rate by the tokens of all 8 steps would say 1 ms.
TEST(AliseOrder, TokensCountOnceThoughTheirLayersTakeSeveralSteps) {
  ReplicaDriver d("layered_prefill", kOneAtATime,
                  Memory{.max_model_len = 3500, .order = "alise", .order_params = "{token_ms: 1, first_queue_ms: 1000}"});
  d.arrive(3000, 1);
  for (int i = 0; i < 8; ++i) EXPECT_EQ(d.step().substr(0, 6), "0:3000");
  ASSERT_EQ(d.left().size(), 1U);
  EXPECT_TRUE(d.steps_are({"+ 3000,4 4,8", "2:4"}));
}

// Request 0 has 100 ms to come: the last of the queues of 10, 20, 40 ms and more. It is queued at 1 ms; promoted every 3 ms, it is in the
// first queue at 10 ms, after those that are shorter, and before all at 13 ms.
TEST(AliseOrder, TheAgedArePromoted) {
  const std::string params = "{token_ms: 1, prefill_tokens_per_s: 1e9, first_queue_ms: 10, age_s: ";
  EXPECT_EQ(wait_for("0:4", with_first("+ 4,100", "alise", params + "1000}")), -1);
  EXPECT_EQ(wait_for("0:4", with_first("+ 4,100", "alise", params + "0.003}")), 12);
}

}  // namespace
}  // namespace kvlab
