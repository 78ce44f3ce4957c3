// S3 by hand: 10 blocks of 4 tokens in one piece. The predictor is exact unless a test says otherwise, and a step takes a millisecond.
#include "tests/policies/replica_driver.h"

namespace kvlab {
namespace {

TEST(S3, Scripts) {
  const Scripts run{"s3"};
  // Reservations of 2, 6 and 4 blocks: the two largest fill the memory.
  run("TheLargestThatFitsEntersFirst", "{}", {.num_blocks = 10, .max_model_len = 40}, {"+ 4,4 12,12 8,8", "1:12 2:8; waiting 0; free 0"});
  // With a window of nothing all are late: they enter in order of arrival, up to the first that does not fit.
  run("LateRequestsKeepTheirOrder", "{window_ms: 0}", {.num_blocks = 10, .max_model_len = 40},
      {"+ 4,4 12,12 8,8 4,4", "0:4 1:12; waiting 2 3"});  // request 3 would fit
  // Request 1 needs 6 blocks and 4 are free. Request 2 overtakes it; at 4 ms request 1 has waited for longer than the window, and request 3
  // stays out.
  run("NobodyOvertakesAfterTheWindow", "{window_ms: 2.5}", {.num_blocks = 10, .max_model_len = 40},
      {"+ 12,12", "0:12", "+ 12,12", "0:1", "+ 4,4", "0:1 2:4", "+ 4,4", "0:1 2:1"});
}

// At most 8 output tokens are predicted: 12 tokens are reserved, and the request computes 15. At the end of its reservation it is preempted
// with 9 tokens out, and enters again with 24.
TEST(S3, AReservationThatIsTooShortIsDoubled) {
  ReplicaDriver d(
      "s3", "{}",
      Memory{.num_blocks = 10, .max_model_len = 40, .predictor = "bucket", .predictor_params = "{max_output_tokens: 8, buckets: 2}"});
  EXPECT_TRUE(d.steps_are({"+ 4,12", "0:4; free 7", "0:1 *8", "0:13; free 4", "0:1", "0:1", "; preemptions 1; free 10"}));
}

TEST(S3, ReservesNoMoreThanThereIs) {
  ReplicaDriver d(
      "s3", "{}",
      Memory{.num_blocks = 10, .max_model_len = 1000, .predictor = "bucket", .predictor_params = "{max_output_tokens: 512, buckets: 1}"});
  EXPECT_TRUE(d.steps_are({"+ 4,4", "0:4; free 0"}));
}

}  // namespace
}  // namespace kvlab
