#include "tests/policies/replica_driver.h"

namespace kvlab {
namespace {

// Card 1.2: running requests get their next token in order, and the head joins with its whole prompt in the same step.
TEST(OrcaScheduler, WholePromptsJoinTheDecodes) {
  ReplicaDriver d("orca", "{reservation: oracle}", Memory{});
  d.arrive(5, 3);
  EXPECT_EQ(d.step(), "0:5");
  d.arrive_all({{900, 2}, {7, 1}});
  EXPECT_TRUE(d.steps_are({"0:1 1:900 2:7", "0:1 1:1", ""}));
}

// 10 blocks of 4. Final length of each request 5 + 4 = 9 tokens.
//   max     18 tokens -> 5 blocks each: 2 run
//   pow2    16 tokens -> 4 blocks each: 2 run
//   oracle   9 tokens -> 3 blocks each: 3 run
TEST(OrcaScheduler, ReservationVariants) {
  const auto admitted = [](const std::string& reservation) {
    ReplicaDriver d("orca", "{reservation: " + reservation + "}", Memory{.num_blocks = 10, .max_model_len = 18});
    for (int i = 0; i < 4; ++i) d.arrive(5, 4);
    const std::string plan = d.step();
    return plan + " free " + std::to_string(d.free_blocks());
  };
  EXPECT_EQ(admitted("max"), "0:5 1:5 free 0");
  EXPECT_EQ(admitted("pow2"), "0:5 1:5 free 2");
  EXPECT_EQ(admitted("oracle"), "0:5 1:5 2:5 free 1");
}

// Final lengths 20 and 33 of at most 40: the next powers of two are 32 and 64, and 64 is cut to max_model_len = 40: together
// 72 of 80 tokens, 2 blocks left.
TEST(OrcaScheduler, Pow2IsCutAtTheModelLength) {
  ReplicaDriver d("orca", "{reservation: pow2}", Memory{.num_blocks = 20, .max_model_len = 40});
  d.arrive_all({{10, 10}, {30, 3}});
  EXPECT_EQ(d.step(), "0:10 1:30");
  EXPECT_EQ(d.free_blocks(), 2);
}

// Reservations last until completion and are given back then: no preemption, no watermark.
TEST(OrcaScheduler, HeadWaitsForACompletion) {
  ReplicaDriver d("orca", "{reservation: max}", Memory{.num_blocks = 4, .max_model_len = 16});
  d.arrive_all({{2, 3}, {2, 1}});
  EXPECT_TRUE(d.steps_are({"0:2", "0:1"}));
  EXPECT_TRUE(d.is_stable());
  EXPECT_TRUE(d.steps_are({"0:1", "1:2"}));
  EXPECT_EQ(d.state().counters().preemptions, 0U);
}

// Holes of 2 blocks do not hold a request of 4 although 4 are free: requests of 8, 8, 8 tokens fill 24; when the first and
// the third are done, a request of 16 tokens has no hole until the second is done as well (card 6.1).
TEST(OrcaScheduler, ExternalFragmentation) {
  ReplicaDriver d("orca", "{reservation: oracle}", Memory{.num_blocks = 6});
  d.arrive_all({{7, 1}, {5, 3}, {7, 1}});
  EXPECT_EQ(d.step(), "0:7 1:5 2:7");
  d.arrive(15, 1);
  EXPECT_EQ(d.free_blocks(), 4);
  EXPECT_TRUE(d.steps_are({"1:1", "1:1", "3:15"}));
}

}  // namespace
}  // namespace kvlab
