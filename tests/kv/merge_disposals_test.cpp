#include <gtest/gtest.h>

#include <cmath>

#include "tests/kv/disposal_fixture.h"

namespace kvlab::test {
namespace {

// Merging tokens of equal K and V changes no row's K and V, so attention loses their mass and nothing else.
TEST(MergeDisposals, IdenticalTokensChangeNothing) {
  const SmallLayer::Vectors k = {{1, 2}, {1, 2}, {1, 2}, {-1, 1}}, v = {{3, 4}, {3, 4}, {3, 4}, {1, 0}};
  for (const char* part : {"{merge_nearest: {}}", "{merge_nearest: {merges: values, weight: norm_share, threshold: fixed}}",
                           "{merge_nearest: {combine: mean}}", "{merge_nearest: {combine: pivot, weight: one, threshold: none}}",
                           "{merge_runs: {values_times_count: false}}", "{merge_runs: {order: runs_first, values_times_count: false}}"}) {
    Params p = Params::from_text(std::string("{disposal: ") + part + "}", "test");
    auto [name, parameters] = p.named("disposal", "drop", "");
    auto disposal = DisposalRegistry::make(name, parameters, "disposal");
    SmallLayer merged(k, v), plain({k[0], k[3]}, {v[0], v[3]});
    merged.dispose(*disposal, KeptLists({{0, 3}}));
    const auto a = attend_row0(merged, nullptr, {0.3F, -0.7F}), b = attend_row0(plain, nullptr, {0.3F, -0.7F});
    for (std::size_t c = 0; c < 2; ++c) EXPECT_NEAR(a[c], b[c], 1e-6) << part;
  }
}

// Two tokens share a key, one of them goes: its value survives in part, where deleting it loses all.
TEST(MergeDisposals, BeatDeletingWhereKeysAreAlike) {
  const SmallLayer::Vectors k = {{1, 0}, {1, 0}, {0, 1}}, v = {{0, 1}, {8, 1}, {0, 1}};
  const auto error_of = [&](const std::string& name) {
    SmallLayer full(k, v), cut(k, v);
    auto disposal = make_part<DisposalRegistry>(name);
    cut.dispose(*disposal, KeptLists({{0, 2}}));
    const auto a = attend_row0(full, nullptr, {0.4F, 0.4F}), b = attend_row0(cut, disposal.get(), {0.4F, 0.4F});
    return std::hypot(a[0] - b[0], a[1] - b[1]);
  };
  const float dropped = error_of("drop");
  EXPECT_NEAR(dropped, 8.0 / 3, 1e-5);
  for (const char* name : {"merge_nearest", "merge_position", "merge_runs", "compensation"})
    EXPECT_LT(error_of(name), dropped / 1.5F) << name;
}

TEST(MergeDisposals, KeptTokensKeepTheirPlacesAndCount) {
  for (const char* name : {"merge_nearest", "merge_position", "merge_runs"}) {
    RandomLayer layer({1, 8, 2, 8, 16}, 2, 65, 3);
    auto disposal = make_part<DisposalRegistry>(name);
    const KeptLists lists({{0, 3, 64}, {0, 1, 2, 40, 63, 64}, {5}, {}});
    LayerStep step = layer.prompt_step(8);
    disposal->dispose(step, lists.kept());
    for (std::int32_t r = 0; r < 4; ++r)
      for (std::int32_t i = 0; i < nth(lists.count, r); ++i)
        EXPECT_EQ(step.kv.position[step.kv.slot(r, i)], nth(lists.index, nth(lists.first, r) + i));
  }
}

// D2O: the prompt's mean similarity decides first; a sequence that left takes its threshold with it.
TEST(MergeNearest, ThresholdRunsOnAndIsForgotten) {
  auto disposal = make_part<DisposalRegistry>("merge_nearest", "{merges: values, combine: mean, weight: one}");
  const SmallLayer::Vectors k = {{1, 0}, {1, 0}, {0, 1}}, v = {{1, 0}, {3, 0}, {5, 0}};
  const auto first_value = [&] {
    SmallLayer layer(k, v);
    layer.dispose(*disposal, KeptLists({{0}}));
    return layer.value(0, 0)[0];
  };
  EXPECT_FLOAT_EQ(first_value(), 2);  // cosines 1 and 0, threshold 0.5: token 1 joins
  SmallLayer low({{1, 0}, {0.6F, 0.8F}}, {{1, 0}, {3, 0}});
  low.dispose(*disposal, KeptLists({{0}}));
  EXPECT_FLOAT_EQ(low.value(0, 0)[0], 2);  // 0.6 >= (0.5 + 0.6) / 2
  SmallLayer lower({{1, 0}, {0.5F, std::sqrt(0.75F)}}, {{1, 0}, {3, 0}});
  lower.dispose(*disposal, KeptLists({{0}}));
  EXPECT_FLOAT_EQ(lower.value(0, 0)[0], 1);  // 0.5 < (0.55 + 0.5) / 2
  disposal->forget(0);
  lower.dispose(*disposal, KeptLists({{0}}));
  EXPECT_FLOAT_EQ(first_value(), 2);
}

TEST(MergePosition, AveragesIntoTheNearestAnchor) {
  auto disposal = make_part<DisposalRegistry>("merge_position");
  SmallLayer layer({{0, 0}, {2, 0}, {4, 0}, {9, 0}}, {{0, 0}, {0, 2}, {0, 4}, {0, 9}});
  layer.dispose(*disposal, KeptLists({{0, 3}}));
  EXPECT_EQ(layer.key(0, 0), (std::vector<float>{1, 0}));
  EXPECT_EQ(layer.value(0, 0), (std::vector<float>{0, 1}));
  EXPECT_EQ(layer.key(0, 1), (std::vector<float>{6.5F, 0}));
}

}  // namespace
}  // namespace kvlab::test
