#include "policies/kv/alike_layers.h"

#include <gtest/gtest.h>

namespace kvlab {
namespace {

// One call in each layer, of so many rows.
AlikeLayers::PerLayer calls(const std::vector<std::int64_t>& rows) {
  AlikeLayers::PerLayer all;
  for (const std::int64_t r : rows) all.push_back({OpCall{.op = "attend", .rows = r}});
  return all;
}

// How many runs of all layers it takes until the chosen ones are enough, at most 100; of_chosen answers with the same calls.
int runs_until_trusted(AlikeLayers& alike, const AlikeLayers::PerLayer& all) {
  int runs = 0;
  for (; runs < 100 && alike.wants_all(); ++runs) alike.see(all, [&] { return all; });
  return runs;
}

std::vector<std::int32_t> chosen(const AlikeLayers& alike) { return {alike.chosen().begin(), alike.chosen().end()}; }

TEST(AlikeLayers, OneLayerOfEachKindSpeaksForTheOthers) {
  AlikeLayers alike({0, 0, 2, 2, 2});
  EXPECT_EQ(chosen(alike), (std::vector<std::int32_t>{0, 2}));
  const AlikeLayers::PerLayer all = calls({1, 1, 7, 7, 7});
  EXPECT_EQ(runs_until_trusted(alike, all), 24);
  EXPECT_EQ(alike.spread(calls({1, 0, 7, 0, 0})), all);
}

TEST(AlikeLayers, KindsStayApartWhereTheyDoTheSame) {
  AlikeLayers alike({0, 0, 2, 2});
  EXPECT_EQ(runs_until_trusted(alike, calls({5, 5, 5, 5})), 24);
  EXPECT_EQ(chosen(alike), (std::vector<std::int32_t>{0, 2}));
}

TEST(AlikeLayers, ALayerThatDiffersIsToldApart) {
  AlikeLayers alike({0, 0, 0, 0});
  EXPECT_EQ(runs_until_trusted(alike, calls({5, 5, 6, 5})), 25) << "one to see it, and as many as ever";
  EXPECT_EQ(chosen(alike), (std::vector<std::int32_t>{0, 2}));
}

TEST(AlikeLayers, LayersThatNeedAnotherOneAllRun) {
  AlikeLayers alike({0, 0, 0, 0});
  const AlikeLayers::PerLayer all = calls({5, 5, 5, 5});
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(alike.wants_all());
    alike.see(all, [] { return calls({4, 5, 5, 5}); });  // without the others, the first one does something else
  }
}

TEST(AlikeLayers, AllRunNowAndThenAndForEverWhereTheyDiffer) {
  AlikeLayers alike({0, 0, 0});
  const AlikeLayers::PerLayer all = calls({5, 5, 5});
  EXPECT_EQ(runs_until_trusted(alike, all), 24);
  for (int i = 0; i < 15; ++i) {
    EXPECT_FALSE(alike.wants_all());
    alike.note_trusted();
  }
  EXPECT_EQ(runs_until_trusted(alike, all), 1);
  for (int i = 0; i < 15; ++i) alike.note_trusted();
  EXPECT_EQ(runs_until_trusted(alike, calls({5, 5, 6})), 100);
}

}  // namespace
}  // namespace kvlab
