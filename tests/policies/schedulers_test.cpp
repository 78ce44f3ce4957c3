// Rules that several schedulers share.
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

// Blocks needed against blocks in all: 18 leave the watermark of 2, 19 never can, though an empty pool has them.
TEST(Schedulers, RejectWhatLeavesLessThanTheWatermark) {
  for (const char* scheduler : {"vllm_v0", "sarathi"}) {
    SCOPED_TRACE(scheduler);
    ReplicaDriver d(scheduler, "{watermark_frac: 0.1}", Memory{.num_blocks = 20});
    ASSERT_TRUE(d.steps_are({"+ 73,1 72,1", "1:72; left 2"}));
    EXPECT_EQ(std::tuple(d.left()[0].number, d.left()[0].outcome), std::tuple(0U, Outcome::kRejected));
    EXPECT_NE(d.rejection().find("watermark"), std::string::npos);
  }
}

// A request that the KV policy has cut is swapped, also where a scheduler (as vLLM 1.4) only recomputes, and comes back before others
// enter.
TEST(Schedulers, BringBackACutRequest) {
  for (const auto& [scheduler, params] : {std::pair{"vllm_v1", "{}"}, {"sglang", "{overlap: false}"}}) {
    SCOPED_TRACE(scheduler);
    ReplicaDriver d(scheduler, params, Memory{.num_blocks = 8, .host_blocks = 4, .kept_tokens = 8});
    EXPECT_TRUE(d.steps_are({"+ 12,9", "0:12; free 6"}));
    d.state().preempt(d.state().running()[0], Preemption::kRecompute, QueueEnd::kFront);
    ASSERT_TRUE(d.steps_are({"; copies_in 1", "", "copied in", "0:1; recomputed 0"}));
  }
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

}  // namespace
}  // namespace kvlab
