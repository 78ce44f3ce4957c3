#include "tests/policies/replica_driver.h"

namespace kvlab {
namespace {

TEST(SarathiScheduler, Scripts) {
  const Scripts run{"sarathi"};
  // tau = 8. Step 1: 8 of request 0's 12 tokens. Step 2: its last 4, and 4 of request 1's 10. Step 3: decode of 0, then
  // min(6, 8 - 1) = 6 of request 1 and 1 of request 2's 3.
  run("DecodesThenPartialPrefillsThenNewPrompts", "{budget_tokens: 8}", {},
      {"+ 12,3 10,2 3,1", "0:8", "0:4 1:4", "0:1 1:6 2:1", "0:1 1:1 2:2", ""});
  // Card 1.5: decodes never stall, even when they exceed the budget without any prompt.
  run("DecodesExceedTheBudgetIfTheyMust", "{budget_tokens: 2}", {},
      {"+ 1,3 1,3 1,3", "0:1 1:1", "0:1 1:1; stable",  // request 2 finds no budget
       "0:1 1:1", "2:1"});
  // Card 1.5: memory for the whole prompt is taken at its first chunk: 16 tokens = 4 blocks of the 10 after 8 tokens.
  run("FirstChunkTakesMemoryForTheWholePrompt", "{budget_tokens: 8}", {.num_blocks = 10}, {"+ 16,1", "0:8; free 6", "0:8"});
  // 20 blocks, watermark 2. Request 0 takes 9 of its 33 tokens' blocks at once; request 1 needs 10 for its whole prompt, which
  // would leave 1: it waits although its first chunk would fit easily.
  run("WatermarkIsForTheEntirePrompt", "{budget_tokens: 40, watermark_frac: 0.1}", {.num_blocks = 20},
      {"+ 33,2 37,1", "0:33", "0:1", "1:37"});
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
  // 2023: one chunk per step. tau = 8: request 1 waits while request 0 has a chunk, though 8 - 3 tokens were free in step 2.
  run("DecodeMaximalHasOneChunkPerStep", "{budget_tokens: 8, version: decode_maximal}", {},
      {"+ 11,4 9,1", "0:8", "0:3", "0:1 1:7", "0:1 1:2"});
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

TEST(SarathiScheduler, DynamicBudgetMustFall) {
  Params p = Params::from_text("{dynamic_stages: 2, dynamic_high_tokens: 64, dynamic_low_tokens: 128}");
  EXPECT_THROW(SchedulerRegistry::make("sarathi", p, "scheduler"), InputError);
}

}  // namespace
}  // namespace kvlab
