#include "tests/policies/replica_driver.h"

namespace kvlab {
namespace {

// Almost no output is expected of anybody: prompts enter while memory holds them.
constexpr const char* kTrusting = "{clip_tokens: 1, init_ratio: 0}";
// Half of the remaining output is expected, throughout.
constexpr const char* kHalf = "{init_ratio: 0.5, min_ratio_factor: 1}";

TEST(SgLangScheduler, Scripts) {
  const Scripts run{"sglang"};
  run("PromptsComeBeforeDecodes", "{}", {}, {"+ 6,3", "0:6", "+ 5,2", "1:5", "0:1 1:1", "0:1", "; left 2"});
  // Chunks end at blocks. The cut prompt continues in the next step, though request 0 could decode.
  run("CutsOnePromptAtMost", "{chunk_tokens: 8}", {}, {"+ 4,3 12,2 3,1", "0:4 1:4", "1:8", "2:3", "0:1 1:1"});
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

// 40 tokens of memory. Request 0 holds 8 and has 16 to emit, of which 8 are expected: 24 are left. Request 1 needs 8 and its output.
TEST(SgLangScheduler, AdmitsByExpectedOutput) {
  for (const auto& [arrival, step] : {std::pair{"+ 8,15", "1:8"}, {"+ 8,16", "0:1"}}) {
    ReplicaDriver d("sglang", kHalf, Memory{.num_blocks = 10});
    EXPECT_TRUE(d.steps_are({"+ 8,17", "0:8", arrival, step})) << arrival;
  }
}

// The share falls from 0.5 by 0.05 per decode step. After two of them request 0 has 14 tokens to emit, of which 5.6 are expected. It holds
// 3 blocks of 10, so 22.4 tokens are left; with half of its output, 21.
TEST(SgLangScheduler, TheExpectedShareFallsWithEveryDecodeStep) {
  for (const auto& [arrival, step] : {std::pair{"+ 8,14", "1:8"}, {"+ 8,15", "0:1"}}) {
    ReplicaDriver d("sglang", "{init_ratio: 0.5, min_ratio_factor: 0, ratio_decay_steps: 10}", Memory{.num_blocks = 10});
    EXPECT_TRUE(d.steps_are({"+ 8,17", "? *3", arrival, step})) << arrival;
  }
}

// Fast-forward leaves plans out and says how many.
TEST(SgLangScheduler, TheExpectedShareFallsWithPlansThatAreLeftOut) {
  ReplicaDriver d("sglang", "{init_ratio: 0.5, min_ratio_factor: 0, ratio_decay_steps: 10}", Memory{.num_blocks = 10});
  EXPECT_TRUE(d.steps_are({"+ 8,17", "0:8"}));
  d.scheduler().on_repeat(10);  // 32 tokens are free, and nothing is expected of request 0
  EXPECT_TRUE(d.steps_are({"+ 8,23", "1:8"}));
}

// The output that a request states counts in full when it enters, a clip aside.
TEST(SgLangScheduler, StatedAndClippedOutputs) {
  for (const auto& [parameters, step] : {std::pair{"{}", "0:8 1:8"},
                                         {"{max_new_tokens: 20}", "0:8"},                        // 32 free, 20 spoken for, 28 needed
                                         {"{max_new_tokens: 20, clip_tokens: 11}", "0:8 1:8"}})  // 21 left, 19 needed
    EXPECT_TRUE(ReplicaDriver("sglang", parameters, Memory{.num_blocks = 10}).steps_are({"+ 8,5 8,5", step})) << parameters;
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

// Earlier versions make room for 20 steps, later ones use that margin for the share alone. With room for 5 steps a second request goes too.
TEST(SgLangScheduler, ARetractionMayMakeRoomForMoreSteps) {
  for (const auto& [more, step] : {std::pair{"}", "0:1 1:1; preemptions 1"}, {", retract_room_steps: 5}", "0:1; preemptions 2"}}) {
    ReplicaDriver d("sglang", std::string("{clip_tokens: 1, init_ratio: 0") + more, Memory{.num_blocks = 7});
    EXPECT_TRUE(d.steps_are({"+ 8,9 8,9 8,9", "0:8 1:8 2:8", step})) << more;
  }
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
