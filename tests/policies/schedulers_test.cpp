// Rules that several schedulers share.
#include "tests/error_of.h"
#include "tests/has_all.h"
#include "tests/policies/replica_driver.h"

namespace kvlab {
namespace {

TEST(Schedulers, AtMostMaxNumSeqs) {
  struct Case {
    const char* scheduler;
    bool is_stable;  // while the waiting request needs a row
    const char* more = "";
    Memory memory{};
  };
  for (const Case& c :
       {Case{"vllm_v0", true}, Case{"vllm_v1", true}, Case{"sglang", true}, Case{"orca", true, ", reservation: oracle"},
        Case{"fastgen", false}, Case{"sarathi", false}, Case{"s3", false, "", Memory{.num_blocks = 10, .max_model_len = 40}}}) {
    SCOPED_TRACE(c.scheduler);
    ReplicaDriver d(c.scheduler, std::string("{max_num_seqs: 2") + c.more + "}", c.memory);
    EXPECT_TRUE(d.steps_are({"+ 4,2 4,2 4,2", "0:4 1:4", "0:1 1:1"}));
    EXPECT_TRUE(!c.is_stable || d.is_stable());
    EXPECT_EQ(d.step(), "2:4");
  }
}

// The last token is not stored: 12 + 5 - 1 = 16 tokens fit a reservation of 16, 12 + 6 do not. Blocks needed against blocks in all: 18
// leave the watermark of 2, 19 never can, though an empty pool has them.
TEST(Schedulers, RejectWhatCanNeverRun) {
  struct Case {
    const char *scheduler, *params, *arrivals, *step, *key;
    std::uint64_t rejected;
  };
  for (const Case& c : {Case{"static", "{max_len_tokens: 16}", "+ 12,5 12,6", "0:12/12; left 1", "max_len_tokens", 1},
                        {"vllm_v0", "{budget_tokens: 10}", "+ 11,1 10,1", "1:10; left 2", "budget_tokens", 0},
                        {"vllm_v0", "{watermark_frac: 0.1}", "+ 73,1 72,1", "1:72; left 2", "watermark", 0},
                        {"sarathi", "{watermark_frac: 0.1}", "+ 73,1 72,1", "1:72; left 2", "watermark", 0}}) {
    SCOPED_TRACE(c.scheduler);
    ReplicaDriver d(c.scheduler, c.params, Memory{.num_blocks = 20});
    ASSERT_TRUE(d.steps_are({c.arrivals, c.step}));
    EXPECT_EQ(std::tuple(d.left()[0].number, d.left()[0].outcome), std::tuple(c.rejected, Outcome::kRejected));
    EXPECT_THAT(d.rejection(), HasSubstr(c.key));
  }
}

TEST(Schedulers, RefuseParameters) {
  struct Case {
    const char *scheduler, *params, *text;
    std::int64_t layers = 8;
  };
  for (const Case& c :
       {Case{"sarathi", "{dynamic_stages: 2, dynamic_high_tokens: 64, dynamic_low_tokens: 128}", ""},
        {"skip_decode", "{least_layers: 9, over_tokens: 4}", "above the 8 layers of the model: give at most 8"},
        {"skip_decode", "{least_layers: 4, most_layers: 9, over_tokens: 4}", "'most_layers' = 9"},
        {"skip_decode", "{least_layers: 6, most_layers: 5, over_tokens: 4}", "only fall"},
        {"skip_decode", "{least_layers: 2, over_tokens: 4, warmup_layers: 3}", "above 'least_layers'"},
        {"skip_decode", "{least_layers: 2, over_tokens: 4, batching: layered_prefill}", "plans whole steps"},
        {"skip_decode", "{least_layers: 2, over_tokens: 4, batching: {sarathi: {budget: 4}}}", "unknown key"},
        {"unified_skip", "{speedup: 6}", "give at most 4"},
        {"layered_prefill", "{stages: 16}", "'stages' = 16 is above the 8 layers of the model: give at most 8"},
        {"layered_prefill", "{}", "runs in an experiment that names a 'model'", 0},
        {"layered_prefill", "{}", "at most 256", 300},
        {"depth_wise", "{loops: 3}", "'loops' = 3 does not divide the 8 layers of the model into equal blocks: give one of 1, 2, 4, 8"}})
    EXPECT_THAT(error_of([&] { ReplicaDriver::make<Scheduler>(c.scheduler, c.params, c.layers); }),
                ::testing::AllOf(HasSubstr(c.text), ::testing::Ne("no error")))
        << c.scheduler << c.params;
  EXPECT_NO_THROW(ReplicaDriver::make<Scheduler>("layered_prefill", "{}"));
}

// A request that the KV policy has cut is swapped, also where a scheduler (as vLLM 1.4) only recomputes, and comes back before others
// enter.
TEST(Schedulers, BringBackACutRequest) {
  for (const auto& [scheduler, params] : {std::pair{"vllm_v1", "{}"}, {"sglang", "{overlap: false}"}})
    Scripts{scheduler}(scheduler, params, {.num_blocks = 8, .host_blocks = 4, .kept_tokens = 8},
                       {"+ 12,9", "0:12; free 6", "recompute 0", "; copies_in 1", "", "copied in", "0:1; recomputed 0"});
}

// A KV policy that cuts sequences turns preemption into swap. Streaming keeps 4 + 8 tokens, 3 blocks' worth. 12 blocks: prompts of 4 take 1
// block each, request 5 takes 4 blocks and 3 of private pages, and keeps 3 afterwards. In step 2 the others want a second block each
// (5 + 5 + 3 = 13): the tail, request 5, goes to host memory. It comes back when the others are done, and nothing is recomputed. With
// layered_prefill it decodes through all layers at once.
TEST(Schedulers, BringBackWhatAPolicySwappedOut) {
  for (const char* scheduler : {"sarathi", "layered_prefill"}) {
    SCOPED_TRACE(scheduler);
    ReplicaDriver d(scheduler, "{}", Memory{.num_blocks = 12, .host_blocks = 10, .kept_tokens = 12});
    ASSERT_TRUE(d.steps_are({"+ 4,3 4,3 4,3 4,3 4,3", "+ 13,3", "0:4 1:4 2:4 3:4 4:4 5:13", "0:1 1:1 2:1 3:1 4:1; copies_out 1"}));
    EXPECT_EQ(d.copies_out()[0].blocks, 3);
    EXPECT_TRUE(d.steps_are({"0:1 1:1 2:1 3:1 4:1", "; unstable", "", "copied in", "5:1", "5:1; left 6; recomputed 0"}));
  }
}

TEST(StaticScheduler, Scripts) {
  const Scripts run{"static"};
  // Prompts 3, 5, 2 form one batch: rows of the longest, 5. Then three decode rows; request 1 (1 token) is done after the
  // prefill, request 0 (2 tokens) after the first decode, and their rows stay as padding until request 2 (3 tokens) is done.
  run("RunsABatchUntilAllAreDone", "{max_batch_seqs: 3}", {},
      {"+ 3,2 5,1 2,3 4,1", "0:3/5 1:5/5 2:2/5", "0:1 2:1 +1", "2:1 +2", "3:4/4",  // no request joined before
       ""});
  // The reservation is never larger than the memory, or no request could run.
  run("ModelLengthBeyondMemoryStillRunsOne", "{}", {.num_blocks = 10, .max_model_len = 1000}, {"+ 4,1 4,1", "0:4/4", "1:4/4"});
  run("StableWhileABatchRuns", "{max_batch_seqs: 1}", {}, {"+ 4,9 4,9", "?", "?; stable"});
  run("FullBatchDoesNotWaitForTheWindow", "{max_batch_seqs: 2, window_ms: 10}", {}, {"+ 4,1", "", "+ 4,1", "0:4/4 1:4/4"});
  // Card 1.1: a padding row costs linear work, real tokens alone count: the step's entries hold 3 + 5 tokens, not 10.
  run("PaddingIsCostNotThroughput", "{}", {}, {"+ 3,2 5,1", "0:3/5 1:5/5; prompt_tokens 8", "0:1 +1"});
}

// Window 10 ms, arrival at 0: the plans at 1 and 9 ms wait and say until when; at 10 ms the batch starts with whom there is.
TEST(StaticScheduler, WindowExpiry) {
  ReplicaDriver d("static", "{max_batch_seqs: 2, window_ms: 10}");
  EXPECT_TRUE(d.steps_are({"+ 4,1", ""}));
  EXPECT_EQ(d.scheduler().wants_plan_at(), kStart + Span(10'000'000));
  d.set_now(kStart + Span(8'000'000));
  EXPECT_TRUE(d.steps_are({"", "0:4/4"}));
  EXPECT_EQ(d.scheduler().wants_plan_at(), kNever);
}

TEST(OrcaScheduler, Scripts) {
  const Scripts run{"orca"};
  // Final lengths 20 and 33 of at most 40: the next powers of two are 32 and 64, and 64 is cut to max_model_len = 40: together
  // 72 of 80 tokens, 2 blocks left.
  run("Pow2IsCutAtTheModelLength", "{reservation: pow2}", {.num_blocks = 20, .max_model_len = 40}, {"+ 10,10 30,3", "0:10 1:30; free 2"});
  // Reservations last until completion and are given back then: no preemption, no watermark.
  run("HeadWaitsForACompletion", "{reservation: max}", {.num_blocks = 4, .max_model_len = 16},
      {"+ 2,3 2,1", "0:2", "0:1; stable", "0:1", "1:2; preemptions 0"});
  // Holes of 2 blocks do not hold a request of 4 although 4 are free: requests of 8, 8, 8 tokens fill 24; when the first and
  // the third are done, a request of 16 tokens has no hole until the second is done as well (card 6.1).
  run("ExternalFragmentation", "{reservation: oracle}", {.num_blocks = 6},
      {"+ 7,1 5,3 7,1", "0:7 1:5 2:7", "+ 15,1; free 4", "1:1", "1:1", "3:15"});
}

TEST(S3, Scripts) {
  const Scripts run{"s3"};  // 10 blocks of 4 tokens in one piece
  // Reservations of 2, 6 and 4 blocks: the two largest fill the memory.
  run("TheLargestThatFitsEntersFirst", "{}", {.num_blocks = 10, .max_model_len = 40}, {"+ 4,4 12,12 8,8", "1:12 2:8; waiting 0; free 0"});
  // With a window of nothing all are late: they enter in order of arrival, up to the first that does not fit.
  run("LateRequestsKeepTheirOrder", "{window_ms: 0}", {.num_blocks = 10, .max_model_len = 40},
      {"+ 4,4 12,12 8,8 4,4", "0:4 1:12; waiting 2 3"});  // request 3 would fit
  // Request 1 needs 6 blocks and 4 are free. Request 2 overtakes it; at 4 ms request 1 has waited for longer than the window, and request 3
  // stays out.
  run("NobodyOvertakesAfterTheWindow", "{window_ms: 2.5}", {.num_blocks = 10, .max_model_len = 40},
      {"+ 12,12", "0:12", "+ 12,12", "0:1", "+ 4,4", "0:1 2:4", "+ 4,4", "0:1 2:1"});
  // At most 8 output tokens are predicted: 12 tokens are reserved, and the request computes 15. At the end of its reservation it is
  // preempted with 9 tokens out, and enters again with 24.
  run("AReservationThatIsTooShortIsDoubled", "{}",
      {.num_blocks = 10, .max_model_len = 40, .predictor = "bucket", .predictor_params = "{max_output_tokens: 8, buckets: 2}"},
      {"+ 4,12", "0:4; free 7", "0:1 *8", "0:13; free 4", "0:1", "0:1", "; preemptions 1; free 10"});
  run("ReservesNoMoreThanThereIs", "{}",
      {.num_blocks = 10, .max_model_len = 1000, .predictor = "bucket", .predictor_params = "{max_output_tokens: 512, buckets: 1}"},
      {"+ 4,4", "0:4; free 0"});
}

TEST(SarathiScheduler, Scripts) {
  const Scripts run{"sarathi"};
  // Card 1.5: decodes never stall, even when they exceed the budget without any prompt.
  run("DecodesExceedTheBudgetIfTheyMust", "{budget_tokens: 2}", {},
      {"+ 1,3 1,3 1,3", "0:1 1:1", "0:1 1:1; stable",  // request 2 finds no budget
       "0:1 1:1", "2:1"});
  // 6 blocks of 4: requests of 8 tokens hold 2 each. The decode of request 0 needs a third block: the tail, 2, is preempted
  // (2 free); request 0 and 1 take one each. Request 2 needs 3 blocks for its 9 tokens: it waits at the head.
  run("PreemptsTheTailByRecompute", "{}", {.num_blocks = 6},
      {"+ 8,3 8,3 8,3", "0:8 1:8 2:8", "+ 1,1", "0:1 1:1; waiting 2 3", "0:1 1:1", "2:9 3:1",  // 6 - 3 - 1 = 2 blocks left
       "2:1; left 4"});
  // The victim may be a prompt in the middle of its prefill: it starts over. 5 blocks: request 0 holds 2, request 1 has taken
  // 3 for its 12 tokens, of which 7 + 1 were to be computed in two steps; request 0's first decode needs a third block.
  run("PreemptsAPartialPrefill", "{budget_tokens: 12}", {.num_blocks = 5},
      {"+ 8,2 12,1", "0:8 1:4", "0:1",  // 1 preempted: 3 - 1 = 2 blocks free, 3 needed
       "1:12; recomputed 4"});
  // Budget from 128 to 32 in 3 stages over 300 tokens: 128, 80, 32, each rounded to a multiple of 32 (80 is half way: 96).
  // Stages are 100 tokens of the prompt long: 0 -> 128; 128 -> stage 1; 224 -> stage 2 from here on, also after 300.
  run("DynamicBudgetFallsAlongThePrompt", "{dynamic_stages: 3, dynamic_high_tokens: 128, dynamic_low_tokens: 32, dynamic_span_tokens: 300}",
      {}, {"+ 350,1", "0:128", "0:96", "0:32", "0:32", "0:32", "0:30"});
}

// A prompt that is still being prefilled has its blocks without hashes: a follower with the same content hits the two blocks
// of the first chunk (8 tokens), not the four that were taken. Chunk 2 (8 more): then three (the last is recomputed).
TEST(SarathiScheduler, BlocksTakenAheadAreNotHits) {
  ReplicaDriver d("sarathi", "{budget_tokens: 8}", Memory{.num_blocks = 20, .prefix_caching = true});
  const std::vector<std::uint64_t> content = {11, 12, 13, 14};
  d.arrive(16, 2, content);
  EXPECT_EQ(d.step(), "0:8");
  EXPECT_EQ(d.cached_tokens(16, content), 8);
  EXPECT_EQ(d.step(), "0:8");
  EXPECT_EQ(d.cached_tokens(16, content), 12);
  d.arrive(16, 1, content);
  EXPECT_EQ(d.step(), "0:1 1:4");
}

TEST(FastGenScheduler, Scripts) {
  const Scripts run{"fastgen"};
  // A prompt enters only if blocks exist for all its remaining tokens: request 1 needs 5, and 3 are free; request 2, which would fit, waits
  // after it.
  run("NeedsBlocksForTheWholeRemainder", "{forward_tokens: 8}", {.num_blocks = 5},
      {"+ 6,4 20,1 1,1", "0:6", "0:1; stable", "0:1", "0:1", "1:8"});
  // Card 1.6, step 3: nothing can be scheduled. 4 blocks, requests 0, 1, 2 of 4, 4 and 8 tokens are all full. The last holder,
  // 2, is flushed to the END of the queue, after request 3, which arrived later; requests 0 and 1 get its two blocks.
  run("FlushesTheLastHolderToTheBack", "{}", {.num_blocks = 4},
      {"+ 4,2 4,2 8,3", "0:4 1:4 2:8", "+ 3,1", "0:1 1:1; waiting 3 2; preemptions 1",
       "3:3 2:9",  // prompt + emitted are recomputed
       "2:1; left 4"});
  // The victim is the last holder, not the last arrival. Request 2 came back last of all after a flush: now it comes after request 3, which
  // arrived after it, and goes again; request 3 stays.
  run("VictimsGoByOrderOfHoldingNotOfArrival", "{}", {.num_blocks = 4},
      {
          "+ 4,2 4,2 7,9", "0:4 1:4 2:7", "2:1",  // 7 of 8: room in its last block; 0 and 1 have none
          "+ 4,5", "0:1 1:1",                     // flush of 2
          "3:4 2:9; running 3 2",                 // 1 + 3 blocks
          "2:1",                                  // room in its third block
          "2:1", "2:1", "3:1; waiting 2"          // both full: 2 is flushed although it arrived before 3
      });
  // Card 1.6: the begun prompt 1 is before the buffer and the decode after it, so the decode is flushed though it was
  // admitted first. 5 blocks: request 0 grows to 4 of them, request 1 holds one and needs 3 more.
  run("FlushesADecodeBeforeABegunPrompt", "{forward_tokens: 8}", {.num_blocks = 5},
      {"+ 4,15 16,1", "0:4 1:4", "0:1 *12; free 0", "1:8; waiting 0", "1:4", "0:8"});
  // A scheduled decode goes to the end of the buffer; request 1, passed over for want of a block, is in front of request 0 then.
  run("ADecodePassedOverComesFirstLater", "{}", {.num_blocks = 4},
      {"+ 5,5 4,5 2,2", "0:5 1:4 2:2", "0:1 2:1", "1:1 0:1; unstable"});  // fast-forward takes requests in order of admission
  run("EmptyQueueEmptyPlan", "{}", {}, {""});
}

// All its blocks exist when a prompt begins, and others may take them before it ends: decodes come first. 6 blocks; request 1
// (16 tokens, 4 blocks) begins with 2 of them while request 0 holds 1 of 3 it will need.
TEST(FastGenScheduler, ABegunPromptCanRunOutOfBlocks) {
  ReplicaDriver d("fastgen", "{forward_tokens: 8}", Memory{.num_blocks = 5});
  EXPECT_TRUE(d.steps_are({"+ 4,6 16,1", "0:4 1:4; free 3", "0:1"}));  // request 0 takes a block; 2 are left, 3 needed
  EXPECT_FALSE(d.last_step().is_uniform);
  EXPECT_TRUE(d.steps_are({"0:1 *4", "1:8", "1:4"}));
}

// Almost no output is expected of anybody: prompts enter while memory holds them.
constexpr const char* kTrusting = "{clip_tokens: 1, init_ratio: 0}";
// Half of the remaining output is expected, throughout.
constexpr const char* kHalf = "{init_ratio: 0.5, min_ratio_factor: 1}";

TEST(SgLangScheduler, Scripts) {
  const Scripts run{"sglang"};
  run("ThePromptThatIsLeftSharesItsStep", "{chunk_tokens: 8}", {},
      {"+ 6,1 9,1 3,1", "0:6",  // 2 tokens are no block
       "1:8", "1:1 2:3"});
  run("MaxPrefillTokensLetsOneLongPromptPass", "{chunk_tokens: 0, max_prefill_tokens: 8}", {},
      {"+ 20,1 4,1 4,1", "0:20", "1:4"});  // 4 is not less than the 4 that are left
  run("DecodesJoinPromptsOnlyIfAsked", "{chunk_tokens: 8, mixed_chunk: true}", {},
      {"+ 4,3", "0:4", "+ 12,2", "1:4 0:1",  // 7 tokens next to the decode, in whole blocks
       "1:7 0:1", "1:1; unstable",           // the next step is a decode, this one was a prompt
       "1:1"});
  run("IdlenessRestoresTheShare", "{init_ratio: 0.5, min_ratio_factor: 0, ratio_decay_steps: 1}", {.num_blocks = 10},
      {"+ 4,3", "? *3", "", "+ 8,17", "1:8", "+ 8,16", "1:1"});  // as in AdmitsByExpectedOutput
}

// Fast-forward leaves plans out and says how many.
TEST(SgLangScheduler, TheExpectedShareFallsWithPlansThatAreLeftOut) {
  ReplicaDriver d("sglang", "{init_ratio: 0.5, min_ratio_factor: 0, ratio_decay_steps: 10}", Memory{.num_blocks = 10});
  EXPECT_TRUE(d.steps_are({"+ 8,17", "0:8"}));
  d.scheduler().on_repeat(10);  // 32 tokens are free, and nothing is expected of request 0
  EXPECT_TRUE(d.steps_are({"+ 8,23", "1:8"}));
}

TEST(SgLangScheduler, AdmissionScripts) {
  const Scripts run{"sglang"};
  // 40 tokens of memory. Request 0 holds 8 and has 16 to emit, of which 8 are expected: 24 are left. Request 1 needs 8 and its output.
  for (const auto& [arrival, step] : {std::pair{"+ 8,15", "1:8"}, {"+ 8,16", "0:1"}})
    run("AdmitsByExpectedOutput", kHalf, {.num_blocks = 10}, {"+ 8,17", "0:8", arrival, step});
  // The share falls from 0.5 by 0.05 per decode step. After two of them request 0 has 14 tokens to emit, of which 5.6 are expected. It
  // holds 3 blocks of 10, so 22.4 tokens are left; with half of its output, 21.
  for (const auto& [arrival, step] : {std::pair{"+ 8,14", "1:8"}, {"+ 8,15", "0:1"}})
    run("TheExpectedShareFallsWithEveryDecodeStep", "{init_ratio: 0.5, min_ratio_factor: 0, ratio_decay_steps: 10}", {.num_blocks = 10},
        {"+ 8,17", "? *3", arrival, step});
  // The output that a request states counts in full when it enters, a clip aside.
  for (const auto& [parameters, step] : {std::pair{"{}", "0:8 1:8"},
                                         {"{max_new_tokens: 20}", "0:8"},                        // 32 free, 20 spoken for, 28 needed
                                         {"{max_new_tokens: 20, clip_tokens: 11}", "0:8 1:8"}})  // 21 left, 19 needed
    run(parameters, parameters, {.num_blocks = 10}, {"+ 8,5 8,5", step});
  // Earlier versions make room for 20 steps, later ones use that margin for the share alone. With room for 5 steps a second request goes
  // too.
  for (const auto& [more, step] : {std::pair{"}", "0:1 1:1; preemptions 1"}, {", retract_room_steps: 5}", "0:1; preemptions 2"}})
    run("ARetractionMayMakeRoomForMoreSteps", std::string("{clip_tokens: 1, init_ratio: 0") + more, {.num_blocks = 7},
        {"+ 8,9 8,9 8,9", "0:8 1:8 2:8", step});
}

TEST(SgLangScheduler, MoreScripts) {
  const Scripts run{"sglang"};
  // Nothing would ever make room for a single request: it enters if its prompt fits.
  run("ARequestAloneEntersWhateverItsOutput", "{}", {.num_blocks = 4}, {"+ 8,9", "0:8"});
  // A full batch admits no request until a request leaves, and the decode step after that is still planned before the next prompt. Request
  // 2 needs 53 of the 53 tokens that are left at first.
  run("AFullBatchStaysFullUntilARequestLeaves", kHalf, {.num_blocks = 20},
      {"+ 8,3 8,21", "0:8 1:8", "+ 8,45", "0:1 1:1; stable", "0:1 1:1; left 1", "1:1; unstable", "2:8"});
  // 6 blocks of 4. At step 6 both have emitted 5 tokens, and both need a block where one is free: the longer prompt goes, to the end of the
  // queue, and leaves the step.
  run("RetractsTheFewestEmittedTokensThenTheLongestPrompt", kTrusting, {.num_blocks = 6},
      {"+ 8,9 4,9", "0:8 1:4", "0:1 1:1 *4", "+ 4,1", "1:1; running 1; waiting 2 0; preemptions 1",
       "2:4"});  // a retraction opens the batch
  // Request 1 came later and has emitted less. The last of the two keeps its blocks and ends first.
  run("RetractsTheYoungestOutput", kTrusting, {.num_blocks = 6},
      {"+ 4,13", "0:4", "0:1", "+ 4,11", "1:4", "0:1 1:1 *7", "0:1; waiting 1",
       "0:1 *3",  // request 1 has 12 tokens to compute, in 8 free
       "1:12; recomputed 11"});
  run("OneTokenPerBlock", kTrusting, {.num_blocks = 10, .block_tokens = 1}, {"+ 4,3 3,2", "0:4 1:3", "0:1 1:1", "0:1; left 2"});
}

// Asynchronous: the second step is planned over a token in flight, none beyond the limit.
TEST(SgLangScheduler, PlansOverATokenInFlight) {
  ReplicaDriver d("sglang", "{}");
  EXPECT_EQ(d.scheduler().pipeline_depth(), 2);
  EXPECT_TRUE(d.steps_are({"+ 4,3 4,1", "plan 0:4 1:4", "plan 0:1"}));
  ReplicaDriver alone("sglang", "{overlap: false}");
  EXPECT_EQ(alone.scheduler().pipeline_depth(), 1);
  EXPECT_TRUE(alone.steps_are({"+ 4,3", "plan 0:4", "plan nothing"}));
}

// Graphs exist for decode steps alone.
TEST(SgLangScheduler, DecodeRowsArePaddedToGraphSizes) {
  ReplicaDriver d("sglang", "{largest_graph_tokens: 512}");
  EXPECT_TRUE(d.steps_are({"+ 4,2", "?"}));
  EXPECT_EQ(d.scheduler().padded_tokens(5), 5) << "a step of prompts";
  d.step();
  for (const auto& [rows, padded] :
       {std::pair{1, 1}, {2, 2}, {3, 4}, {5, 8}, {9, 12}, {13, 16}, {17, 24}, {256, 256}, {257, 272}, {513, 513}})
    EXPECT_EQ(d.scheduler().padded_tokens(rows), padded) << rows;
}

// Numbers of capture sizes for the limits that SGLang has by GPU memory.
TEST(SgLangScheduler, CaptureSizes) {
  for (const auto& [largest, graphs] : {std::pair{0, 0}, {8, 4}, {24, 7}, {32, 8}, {80, 14}, {160, 24}, {256, 36}, {512, 52}}) {
    ReplicaDriver d("sglang", "{largest_graph_tokens: " + std::to_string(largest) + "}");
    EXPECT_EQ(d.scheduler().num_graphs(), graphs) << largest;
  }
}

TEST(SgLangScheduler, DefaultsByGpuMemory) {
  struct Case {
    std::int64_t gib;
    int tp, chunk_tokens, graph_tokens;
  };
  for (const Case& c : {Case{15, 1, 2048, 8}, Case{23, 1, 2048, 24}, Case{23, 4, 2048, 80}, Case{47, 2, 4096, 32}, Case{79, 1, 8192, 256},
                        Case{140, 8, 8192, 512}, Case{179, 1, 16384, 512}}) {
    Params p = Params::from_text("{max_num_seqs: 1}");
    prefer_engine_defaults("sglang", {.overlaps = false, .gpu_bytes = c.gib << 30, .tp = c.tp}, p);
    const auto scheduler = SchedulerRegistry::make("sglang", p, "scheduler");
    EXPECT_EQ(scheduler->step_bounds(1000).tokens, c.chunk_tokens) << c.gib;
    EXPECT_EQ(scheduler->largest_graph_tokens(), c.graph_tokens) << c.gib;
    EXPECT_EQ(scheduler->pipeline_depth(), 1) << "versions before 0.4";
  }
}

}  // namespace
}  // namespace kvlab
