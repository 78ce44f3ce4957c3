#include "tests/policies/replica_driver.h"

namespace kvlab {
namespace {

TEST(StaticScheduler, Scripts) {
  const Scripts run{"static"};
  // Prompts 3, 5, 2 form one batch: rows of the longest, 5. Then three decode rows; request 1 (1 token) is done after the
  // prefill, request 0 (2 tokens) after the first decode, and their rows stay as padding until request 2 (3 tokens) is done.
  run("RunsABatchUntilAllAreDone", "{max_batch_seqs: 3}", {},
      {"+ 3,2 5,1 2,3 4,1", "0:3/5 1:5/5 2:2/5", "0:1 2:1 +1", "2:1 +2", "3:4/4",  // no request joined before
       ""});
  // The reservation is never larger than the memory, or no request could run.
  run("ModelLengthBeyondMemoryStillRunsOne", "{}", {.num_blocks = 10, .max_model_len = 1000}, {"+ 4,1 4,1", "0:4/4", "1:4/4"});
  // As many as memory has room for are a full batch too: 8 blocks of 4 tokens, 16 reserved for each.
  run("BatchFullByMemoryDoesNotWaitForTheWindow", "{max_batch_seqs: 9, max_len_tokens: 16, window_ms: 10}", {.num_blocks = 8},
      {"+ 4,1 4,1", "0:4/4 1:4/4"});
  run("StableWhileABatchRuns", "{max_batch_seqs: 1}", {}, {"+ 4,9 4,9", "?", "?; stable"});
  // 10 blocks of 4 tokens hold 40; max_len 16 gives room for two requests at a time.
  run("ReservesContiguousMemoryForTheLongest", "{max_len_tokens: 16}", {.num_blocks = 10},
      {"+ 4,2 4,2 4,2", "0:4/4 1:4/4; free 2",  // (40 - 32) / 4
       "0:1 1:1", "2:4/4"});
  run("FullBatchDoesNotWaitForTheWindow", "{max_batch_seqs: 2, window_ms: 10}", {}, {"+ 4,1", "", "+ 4,1", "0:4/4 1:4/4"});
}

// Card 1.1: early finishers deliver their last token when it is produced, not at the end of the batch.
TEST(StaticScheduler, EarlyFinishersLeaveAtOnce) {
  ReplicaDriver d("static", "{}");
  ASSERT_TRUE(d.steps_are({"+ 3,1 3,3", "?; left 1"}));
  EXPECT_EQ(d.left()[0].number, 0U);
  EXPECT_TRUE(d.steps_are({"?; left 1"}));
}

// Card 1.1: a padding row costs linear work, real tokens alone count: the step's entries hold 3 + 5 tokens, not 10.
TEST(StaticScheduler, PaddingIsCostNotThroughput) {
  ReplicaDriver d("static", "{}");
  EXPECT_TRUE(d.steps_are({"+ 3,2 5,1", "?; prompt_tokens 8", "?"}));
  EXPECT_EQ(d.last_step().idle_rows, 1);
}

// The last token is not stored: 12 + 5 - 1 = 16 fits a reservation of 16, 12 + 6 does not.
TEST(StaticScheduler, RejectsWhatTheReservationCannotHold) {
  ReplicaDriver d("static", "{max_len_tokens: 16}");
  ASSERT_TRUE(d.steps_are({"+ 12,5 12,6", "0:12/12; left 1"}));
  EXPECT_EQ(d.left()[0].outcome, Outcome::kRejected);
  EXPECT_NE(d.rejection().find("max_len_tokens"), std::string::npos);
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

}  // namespace
}  // namespace kvlab
