#include "tests/policies/fake_fleet.h"

namespace kvlab {
namespace {

TEST(DistServe, SendsToTheFewestRequests) {
  AskedFleet f({2, 2}, "distserve");
  f.fleet.loads[0].waiting = 2;
  f.fleet.loads[1].running = 1;
  EXPECT_EQ(f.prefill(0), "1");
  f.fleet.loads[2] = {0, 3, 0, 10, 100};
  f.fleet.loads[3] = {1, 1, 0, 60, 100};
  EXPECT_EQ(f.decode(0), "3");
}

// 5 % of 100 blocks.
TEST(DistServe, AcceptsWhileTheQueueNeedsLessThanItsShare) {
  FakeFleet fleet(1, 1);
  fleet.loads[1] = {1, 1, 0, 50, 100};
  fleet.queued[1] = 4;
  EXPECT_EQ(ask_decode(*make_dispatcher("distserve"), fleet, 0), "1");
  fleet.queued[1] = 5;
  EXPECT_EQ(ask_decode(*make_dispatcher("distserve"), fleet, 0), "hold 1");
  EXPECT_EQ(ask_decode(*make_dispatcher("distserve", "{waiting_blocks_frac: 0.06}"), fleet, 0), "1");
}

// 100 prompt tokens and the first output token are 11 blocks, beside those that are held and those that the queue will take.
TEST(DistServe, AcceptsOnlyRequestsThatFit) {
  FakeFleet fleet(1, 1);
  fleet.loads[1] = {1, 1, 0, 88, 100};
  fleet.queued[1] = 1;
  EXPECT_EQ(ask_decode(*make_dispatcher("distserve"), fleet, 0), "1");
  fleet.loads[1].used_blocks = 89;
  EXPECT_EQ(ask_decode(*make_dispatcher("distserve"), fleet, 0), "hold 1");
}

// An idle instance makes no step after which it could be asked again.
TEST(DistServe, NeverHoldsForAnIdleInstance) {
  FakeFleet fleet(1, 1);
  fleet.loads[1].used_blocks = 95;
  EXPECT_EQ(ask_decode(*make_dispatcher("distserve", "{waiting_blocks_frac: 0}"), fleet, 0), "1");
}

TEST(DistServe, AcceptsFirstComeFirstServed) {
  AskedFleet f({1, 1}, "distserve");
  f.fleet.loads[1] = {0, 1, 0, 60, 100};
  EXPECT_EQ(f.decode(7, 500), "hold 1");
  EXPECT_EQ(f.decode(8, 10), "hold 1");  // would fit, and came later
  EXPECT_EQ(f.decode(7, 500), "hold 1");
  f.fleet.loads[1].used_blocks = 40;
  EXPECT_EQ(f.decode(7, 500), "1");
  EXPECT_EQ(f.decode(8, 10), "1");
  EXPECT_EQ(f.decode(9, 10), "1");  // no request is left before it
}

TEST(DistServe, UnacceptedRequestsAreLoadAndStayWithTheirInstance) {
  AskedFleet f({1, 2}, "distserve");
  f.fleet.loads[1] = {0, 2, 0, 100, 100};
  f.fleet.loads[2] = {0, 3, 0, 100, 100};
  EXPECT_EQ(f.decode(0), "hold 1");  // 2 against 3
  EXPECT_EQ(f.decode(1), "hold 1");  // 3 against 3
  EXPECT_EQ(f.decode(2), "hold 2");  // 4 against 3
  f.fleet.loads[2] = {0, 1, 0, 10, 100};
  EXPECT_EQ(f.decode(0), "hold 1");
  EXPECT_EQ(f.decode(2), "2");
}

}  // namespace
}  // namespace kvlab
