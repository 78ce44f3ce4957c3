#include <gtest/gtest.h>

#include "kernels/select/nearest_keys_op.h"
#include "tests/kv/tier_fixture.h"

namespace kvlab::test {
namespace {

TEST(LeoAm, TreeFindsTheLeavesOfLargestBound) {
  for (const std::int32_t group : {1, 3, 4, 8})
    for (const std::int32_t prompt : {79, 80, 81, 130}) {
      Prefilled d({4, 2 * group, 2, 8, 16}, 2, prompt, "leo_am", "{leaf_tokens: 4, root_tokens: 32, budget_frac: 0.3}");
      d.expect_rows(9, [&](std::int32_t r, std::int32_t) {
        const std::int32_t n = d.tokens(), leaves = (n - 1) / 4, keep = static_cast<std::int32_t>(0.3 * n) / 4;
        std::vector<double> bounds;
        for (std::int32_t p = 0; p < leaves; ++p) bounds.push_back(d.group_bound(r, 4 * p, 4 * p + 4));
        return tokens_of(best(bounds, static_cast<std::size_t>(keep)), 4, 0, leaves * 4, n);
      });
    }
}

TEST(LeoAm, EqualBoundsGoToTheLowerLeaf) {
  std::vector<float> leaves(16 * 2, 1.0F);
  leaves[2 * 9 + 1] = 2.0F;  // leaf 9 is better, all others are alike
  const float q = 1.0F;
  const Queries query{&q, 1, 0};
  const float* bounds = leaves.data();
  const std::int32_t zero = 0, sixteen = 16, three = 3;
  const std::int64_t first[] = {0, 3};
  std::vector<std::int32_t> index(3);
  KvRows kv;
  kv.num_rows = kv.head_dim = 1;
  run_cpu(NearestKeys{kv, &query, &zero, &sixteen, &three, 1, first, index.data(), NearestKeys::Kind::kLeaves, 2, &bounds});
  EXPECT_EQ(index, (std::vector<std::int32_t>{0, 1, 9}));
}

TEST(LeoAm, LooksAtFewNodesOfALongRow) {
  Decode d({4, 2, 2, 8, 16}, 1, 1 << 15, 3, false);
  auto part = make_part<SelectorRegistry>("leo_am", "{budget_frac: 0.01}");
  d.prefill(*part);
  d.ops.clear_log();
  d.decode(*part);
  // For 4096 leaves in each row: 64 roots, and two children in each of 6 levels above 40 leaves.
  for (const OpCall& c : d.ops.log()) EXPECT_TRUE(c.op != "tree_select" || c.tokens == 2 * (64 + 12 * 40)) << c.tokens;
  EXPECT_TRUE(std::any_of(d.ops.log().begin(), d.ops.log().end(), [](const OpCall& c) { return c.op == "tree_select"; }));
}

// 8 hot leaves and the newest one; half in memory; 4 of 16 bits on disk; 128 leaves and their parents' bounds on the GPU.
// Half of the fetched leaves were on disk, with a quarter of the bits.
TEST(LeoAm, ThreeTiers) {
  Prefilled d({4, 2, 1, 8, 16}, 1, 1024, "leo_am", "{budget_frac: 0.0625}");
  EXPECT_EQ(d.part->resident(d.model, d.store.rows(), {1024 * 32, 0, 0}), (TierBytes{72 * 32 + (256 - 2) * 32, (512 - 72) * 32, 512 * 8}));
  d.decode();
  const Traffic traffic = d.part->take_traffic();
  EXPECT_GT(traffic.fetched_bytes, 0);
  EXPECT_EQ(traffic.disk_bytes, traffic.fetched_bytes / 8);
}

TEST(LeoAm, KeepsTheContract) {
  expect_promises("leo_am", "{}", {{200, 5}, {1, 9}}, {200, 9});
  EXPECT_THROW(make_part<SelectorRegistry>("leo_am", "{leaf_tokens: 8, root_tokens: 24}"), InputError);
}

}  // namespace
}  // namespace kvlab::test
