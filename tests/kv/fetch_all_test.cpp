#include <gtest/gtest.h>

#include "serving/op_sums.h"
#include "sim/kv_cost/step_ops.h"
#include "tests/kv/tier_fixture.h"

namespace kvlab::test {
namespace {

TEST(FetchAll, BringsEveryOlderTokenInEachStep) {
  for (const char* from : {"cpu_memory", "disk"}) {
    Decode d({4, 4, 2, 8, 16}, 3, 50, 3);
    auto part = make_part<SelectorRegistry>("fetch_all", std::string("{from: ") + from + "}");
    d.prefill(*part);
    EXPECT_EQ(part->take_traffic().fetched_bytes, 0);
    for (std::int32_t t = 0; t < 2; ++t) {
      for (const auto& row : d.decode(*part)) EXPECT_EQ(static_cast<std::int32_t>(row.size()), d.tokens());
      const Traffic traffic = part->take_traffic();
      EXPECT_EQ(traffic.fetched_bytes, 6LL * (50 + t) * 2 * 8 * 2) << from << " step " << t;
      EXPECT_EQ(traffic.disk_bytes, from == std::string("disk") ? traffic.fetched_bytes : 0);
      EXPECT_EQ(traffic.hit_units, 0);
    }
  }
}

TEST(FetchAll, TwoLayersAreOnTheGpu) {
  Decode d({8, 4, 2, 8, 16}, 1, 50, 3);
  d.append(50);
  const TierBytes held{3200, 0, 0};
  EXPECT_EQ(make_part<SelectorRegistry>("fetch_all", "{}")->resident(d.model, d.store.rows(), held), (TierBytes{800, 3200, 0}));
  EXPECT_EQ(make_part<SelectorRegistry>("fetch_all", "{from: disk}")->resident(d.model, d.store.rows(), held), (TierBytes{800, 0, 3200}));
}

// Layers whose transfers hide beside computation wait each for its own; without that, all transfers of a step are one sum.
TEST(OpSums, TransfersBesideComputationStayApart) {
  const auto ops_of = [](FetchBeside beside) {
    std::vector<PolicyOp> ops;
    add_calls(ops, {kFetch, 0, 0, 0, 100, 0}, 3, beside);
    add_calls(ops, {kFetch, 0, 0, 0, 700, 0}, 2, beside);
    add_calls(ops, {kFetch, 0, 0, 0, 100, 0}, 1, beside);
    add_calls(ops, {kReadDisk, 0, 0, 0, 40, 0}, 2, beside);
    add_calls(ops, {kReadDisk, 0, 0, 0, 0, 0}, 2, beside);
    return ops;
  };
  const std::vector<PolicyOp> sums = ops_of(FetchBeside::kNothing), apart = ops_of(FetchBeside::kLayerBefore);
  ASSERT_EQ(sums.size(), 2U);
  EXPECT_EQ(std::pair(sums[0].launches, sums[0].bytes), std::pair(6L, 1800L));
  EXPECT_TRUE(sums[0].over_host_link && !sums[0].from_disk && sums[1].from_disk && !sums[1].over_host_link);
  ASSERT_EQ(apart.size(), 3U);
  EXPECT_EQ(std::pair(apart[0].launches, apart[0].bytes), std::pair(4L, 400L));
  EXPECT_EQ(std::pair(apart[1].bytes, apart[1].beside), std::pair(1400L, FetchBeside::kLayerBefore));
}

}  // namespace
}  // namespace kvlab::test
