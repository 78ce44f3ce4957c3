#include "tests/policies/replica_driver.h"

namespace kvlab {
namespace {

TEST(FastGenScheduler, Scripts) {
  const Scripts run{"fastgen"};
  // F = 8. Every pass is filled to 8 tokens while prompts last: short ones are fused, long ones split, the rest of a split one
  // continues before those that wait.
  run("FillsEveryForwardPass", "{forward_tokens: 8}", {}, {"+ 3,3 12,2 4,1", "0:3 1:5", "0:1 1:7", "0:1 1:1 2:4", ""});
  // A prompt enters only if blocks exist for all its remaining tokens: request 1 needs 5, and 3 are free; request 2, which would fit, waits
  // after it.
  run("NeedsBlocksForTheWholeRemainder", "{forward_tokens: 8}", {.num_blocks = 5},
      {"+ 6,4 20,1 1,1", "0:6", "0:1; stable", "0:1", "0:1", "1:8"});
  // Card 1.6: no watermark, the last block may be taken by an admission; and only the blocks of the chunk are taken.
  run("NoWatermarkAndNoReservation", "{forward_tokens: 8}", {.num_blocks = 4}, {"+ 16,1", "0:8; free 2", "0:8; free 4"});
  // A decode without a block is passed over, not preempted: 3 blocks, requests 0 (5 of 8 tokens) and 1 (full) hold them all.
  // Request 0 continues until it needs a block itself; it is done by then.
  run("DecodesWithoutABlockWait", "{}", {.num_blocks = 3}, {"+ 5,3 4,2", "0:5 1:4", "0:1", "0:1; running 1", "1:1; preemptions 0"});
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
}

// All its blocks exist when a prompt begins, and others may take them before it ends: decodes come first. 6 blocks; request 1
// (16 tokens, 4 blocks) begins with 2 of them while request 0 holds 1 of 3 it will need.
TEST(FastGenScheduler, ABegunPromptCanRunOutOfBlocks) {
  ReplicaDriver d("fastgen", "{forward_tokens: 8}", Memory{.num_blocks = 5});
  EXPECT_TRUE(d.steps_are({"+ 4,6 16,1", "0:4 1:4; free 3", "0:1"}));  // request 0 takes a block; 2 are left, 3 needed
  EXPECT_FALSE(d.last_step().is_uniform);
  EXPECT_TRUE(d.steps_are({"0:1 *4", "1:8", "1:4"}));
}

// Once nothing runs that could be flushed, an empty plan is final.
TEST(FastGenScheduler, EmptyQueueEmptyPlan) {
  ReplicaDriver d("fastgen", "{}");
  EXPECT_EQ(d.step(), "");
}

}  // namespace
}  // namespace kvlab
