// Aging of shortest-first orders. One request runs at a time, and a step takes a millisecond.
#include <string>

#include "tests/error_of.h"
#include "tests/has_all.h"
#include "tests/policies/replica_driver.h"

namespace kvlab {
namespace {

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

TEST(SjfOrder, AgingAndWindowsAreAlternatives) {
  EXPECT_THAT(error_of([] { ReplicaDriver::make<Order>("sjf", "{window: 3, aging_per_s: 1}"); }), HasSubstr("give one of them"));
}

// Request 0 has 30 tokens to come at 2 ms, and request 1, with 25, is 2 ms younger: it takes the place, but not with 10 tokens per ms.
TEST(SrptOrder, AgingKeepsAnOlderRequestRunning) {
  for (const auto& [aging, last] : {std::pair{"{}", "1:4"}, {"{aging_per_s: 10000}", "0:1"}}) {
    ReplicaDriver d("vllm_v1", kOneAtATime, Memory{.order = "srpt", .order_params = aging});
    EXPECT_TRUE(d.steps_are({"+ 4,32", "?", "0:1", "+ 4,25", last})) << aging;
  }
}

}  // namespace
}  // namespace kvlab
