#include "policies/kv/grouped_layers.h"
#include "tests/sim/sim_support.h"

namespace kvlab::testing {
namespace {

// Twelve requests of 300 to 740 prompt tokens over a pool of 400 pages.
Served run_with(const LayerGroups& groups) {
  SimSetup setup = basic_setup("vllm_v1", "{budget_tokens: 256}");
  setup.make_footprint = [groups] { return std::make_unique<GroupedLayers>(groups); };
  setup.memory.num_blocks = 400;
  setup.memory.pages_per_block = 1;
  std::vector<TraceRequest> requests;
  for (int i = 0; i < 12; ++i) requests.push_back(request_at(i * 0.02, 300 + 40 * i, 60 + 11 * i));
  return serve(setup, requests);
}

TEST(GroupedLayers, AWindowLeavesRoomForMoreRequests) {
  const Served narrow = run_with({16, 64, 3, 0, 256}), wide = run_with({16, 100'000, 3, 0, 256});
  for (const Served* served : {&narrow, &wide}) EXPECT_EQ(served->records.requests.size(), 12U);
  EXPECT_GT(narrow.summary.batch_mean_requests, 1.5 * wide.summary.batch_mean_requests);
  EXPECT_LE(narrow.summary.kv_used_peak_frac, 1);
  EXPECT_LT(narrow.summary.internal_fragmentation_frac, 0.1) << "pages of a window hold tokens that the blocks hold too";
}

}  // namespace
}  // namespace kvlab::testing
