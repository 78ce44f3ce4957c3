#include "tests/policies/replica_driver.h"

namespace kvlab {
namespace {

TEST(OrcaScheduler, Scripts) {
  const Scripts run{"orca"};
  // Card 1.2: running requests get their next token in order, and the head joins with its whole prompt in the same step.
  run("WholePromptsJoinTheDecodes", "{reservation: oracle}", {}, {"+ 5,3", "0:5", "+ 900,2 7,1", "0:1 1:900 2:7", "0:1 1:1", ""});
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

// 10 blocks of 4. Final length of each request 5 + 4 = 9 tokens.
//   max     18 tokens -> 5 blocks each: 2 run
//   pow2    16 tokens -> 4 blocks each: 2 run
//   oracle   9 tokens -> 3 blocks each: 3 run
TEST(OrcaScheduler, ReservationVariants) {
  for (const auto& [reservation, step] :
       {std::pair{"max", "0:5 1:5; free 0"}, {"pow2", "0:5 1:5; free 2"}, {"oracle", "0:5 1:5 2:5; free 1"}}) {
    ReplicaDriver d("orca", std::string("{reservation: ") + reservation + "}", Memory{.num_blocks = 10, .max_model_len = 18});
    EXPECT_TRUE(d.steps_are({"+ 5,4 5,4 5,4 5,4", step})) << reservation;
  }
}

}  // namespace
}  // namespace kvlab
