#include "tests/policies/fake_fleet.h"

namespace kvlab {
namespace {

std::vector<std::int32_t> share_of(Dispatcher& dispatcher, std::int32_t images, std::vector<std::int64_t> waiting) {
  const RequestRecord request;
  std::vector<std::int32_t> share(waiting.size(), 0);
  dispatcher.place_images({request, images, waiting}, share);
  return share;
}

// Each image goes to the replica with the fewest, those given before counted.
TEST(Epd, SpreadsTheImagesOfARequest) {
  const auto dispatcher = make_dispatcher("epd");
  EXPECT_EQ(share_of(*dispatcher, 5, {0, 0, 0}), (std::vector<std::int32_t>{2, 2, 1}));
  EXPECT_EQ(share_of(*dispatcher, 5, {3, 0, 1}), (std::vector<std::int32_t>{0, 3, 2}));
  EXPECT_EQ(share_of(*dispatcher, 1, {3, 2, 2}), (std::vector<std::int32_t>{0, 1, 0}));
}

TEST(Epd, WithoutParallelEncodingARequestHasOneEncoder) {
  EXPECT_EQ(share_of(*make_dispatcher("epd", "{parallel_encode: false}"), 5, {3, 0, 1}), (std::vector<std::int32_t>{0, 5, 0}));
  EXPECT_EQ(share_of(*make_dispatcher("distserve"), 5, {3, 1, 1}), (std::vector<std::int32_t>{0, 5, 0}));
}

// 5 % of 100 blocks at either stage; 100 prompt tokens are 10 blocks.
TEST(Epd, BothStagesPull) {
  FakeFleet fleet(1, 1);
  fleet.loads[0] = {1, 1, 0, 50, 100};
  fleet.queued[0] = 4;
  EXPECT_EQ(ask_prefill(*make_dispatcher("epd"), fleet, 0), "0");
  fleet.queued[0] = 5;
  EXPECT_EQ(ask_prefill(*make_dispatcher("epd"), fleet, 0), "hold 0");
  fleet.queued[0] = 0;
  fleet.loads[0].used_blocks = 91;
  EXPECT_EQ(ask_prefill(*make_dispatcher("epd"), fleet, 0), "hold 0");
  fleet.loads[1] = {3, 1, 0, 50, 100};
  EXPECT_EQ(ask_decode(*make_dispatcher("epd"), fleet, 0), "1");
  EXPECT_EQ(ask_decode(*make_dispatcher("epd", "{decode_waiting_requests: 3}"), fleet, 0), "1");
  EXPECT_EQ(ask_decode(*make_dispatcher("epd", "{decode_waiting_requests: 2}"), fleet, 0), "hold 1");
}

}  // namespace
}  // namespace kvlab
