#include <cmath>
#include <limits>
#include <numeric>

#include "kernels/merge/merge_into/merge_into.h"
#include "kernels/merge/nearest_kept/nearest_kept.h"
#include "kernels/storage/channel_divisors_op.h"
#include "kernels/storage/channel_stats_op.h"
#include "kernels/storage/take_due_op.h"
#include "kernels/storage/token_copy_op.h"
#include "policies/kv/disposal/key_links_op.h"
#include "policies/kv/disposal/merge_gate_op.h"
#include "tests/kv/disposal_fixture.h"

namespace kvlab::test {
namespace {

using Ints = std::vector<std::int32_t>;
using Floats = std::vector<float>;

TEST(CopyUnits, OthersAreTheComplementOfEveryRow) {
  SmallLayer layer({{1, 0}, {1, 0}, {1, 0}}, {{1, 0}, {1, 0}, {1, 0}}, 4);
  const KeptLists lists({{}, {0, 1, 2}, {1}, {0, 2}});
  EXPECT_EQ(Parted(layer, lists).dropped, (Ints{0, 1, 2, 0, 2, 1}));
}

TEST(NearestKept, FindsTheMostSimilarKeyAndTheLowestOfTies) {
  SmallLayer layer({{0, 0}, {3, 0}, {0, 2}, {-1, 0}, {1, 2}, {0, 5}}, {{0, 0}, {0, 0}, {0, 0}, {0, 0}, {0, 0}, {0, 0}}, 1);
  const KeptLists lists({{1, 2, 5}});
  Parted parted(layer, lists);
  run_cpu(NearestKept{parted.rows, parted.target.data(), parted.similarity.data()});
  EXPECT_EQ(parted.dropped, (Ints{0, 3, 4}));
  EXPECT_EQ(parted.target, (Ints{0, 1, 1}));
  EXPECT_FLOAT_EQ(parted.similarity[0], 0);
  EXPECT_FLOAT_EQ(parted.similarity[1], 0);
  EXPECT_FLOAT_EQ(parted.similarity[2], 2 / std::sqrt(5.0F));
}

TEST(NearestKept, NoKeptTokenMeansNoTargetAndBadKeysStayHarmless) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), huge = std::numeric_limits<float>::infinity();
  SmallLayer layer({{nan, 1}, {huge, 0}, {1, 1}}, {{0, 0}, {0, 0}, {0, 0}}, 2);
  const KeptLists lists({{}, {2}});
  Parted parted(layer, lists);
  run_cpu(NearestKept{parted.rows, parted.target.data(), parted.similarity.data()});
  EXPECT_EQ(parted.target, (Ints{-1, -1, -1, 0, 0}));
  for (const float s : parted.similarity) EXPECT_EQ(s, 0);
}

TEST(NearestKept, EqualsPlainLoopsAcrossBlocks) {
  const auto dot = [](const Floats& x, const Floats& y) { return std::transform_reduce(x.begin(), x.end(), y.begin(), 0.0); };
  for (const std::int32_t n : {2, 64, 65, 66, 129}) {
    SmallLayer::Vectors keys;
    std::vector<Ints> kept{{}, {n - 1}};
    for (std::int32_t i = 0; i < n; ++i) keys.push_back(RandomLayer::normals(8, 11, i));
    for (std::int32_t i = 0; i < n; i += 3) kept[0].push_back(i);
    SmallLayer layer(keys, keys, 2);
    const KeptLists lists{std::span<const Ints>(kept)};
    Parted parted(layer, lists);
    run_cpu(NearestKept{parted.rows, parted.target.data(), parted.similarity.data()});
    for (std::size_t r = 0; r < 2; ++r)
      for (std::int64_t i = parted.first[r]; i < parted.first[r + 1]; ++i) {
        const Floats& x = nth(keys, nth(parted.dropped, i));
        double best = -2;
        for (const std::int32_t j : kept[r])
          best = std::max(best, dot(x, nth(keys, j)) / std::sqrt(dot(x, x) * dot(nth(keys, j), nth(keys, j))));
        EXPECT_NEAR(nth(parted.similarity, i), best, 1e-6) << n;
      }
  }
}

// Places of the kept tokens that the dropped ones are linked to.
Ints linked(const SmallLayer::Vectors& keys, std::initializer_list<Ints> kept, KeyLinks::Kind kind, float min_cosine) {
  SmallLayer layer(keys, SmallLayer::Vectors(keys.size(), {1, 0}), static_cast<std::int32_t>(kept.size()));
  const KeptLists lists(kept);
  Parted parted(layer, lists);
  run_cpu(KeyLinks{parted.rows, kind, min_cosine, parted.target.data()});
  return parted.target;
}

TEST(NearestAnchor, TakesTheEarlierOfTwoAtTheSameDistance) {
  EXPECT_EQ(linked(SmallLayer::Vectors(8, {1, 0}), {{1, 5}, {}}, KeyLinks::Kind::kNearest, KeyLinks{}.min_cosine),
            (Ints{0, 0, 0, 1, 1, 1, -1, -1, -1, -1, -1, -1, -1, -1}));
}

// Tokens 0-2 alike, 3-6 alike, 7 of norm 0.
const SmallLayer::Vectors kTwoRuns{{1, 0}, {2, 0}, {1, 0}, {0, 1}, {0, 3}, {0, 1}, {0, 1}, {0, 0}};

TEST(KeyRuns, LinksNeighboursUpToTheKeptTokens) {
  EXPECT_EQ(linked(kTwoRuns, {{1, 6}}, KeyLinks::Kind::kRuns, 0.75F), (Ints{0, 0, 1, 1, 1, -1}));  // tokens 0, 2, 3, 4, 5, 7
  // All but the key of norm 0 are linked: the nearer kept token.
  EXPECT_EQ(linked(kTwoRuns, {{1, 6}}, KeyLinks::Kind::kRuns, -1.0F), (Ints{0, 0, 0, 1, 1, -1}));
  EXPECT_EQ(linked({{1, 0}, {0, 1}, {0, 1}, {1, 0}}, {{0, 3}, {}}, KeyLinks::Kind::kRuns, 0.75F), Ints(6, -1));
}

TEST(KeyPivots, LowersAllButTheBestOfEachRun) {
  const float inf = std::numeric_limits<float>::infinity();
  SmallLayer layer(kTwoRuns, SmallLayer::Vectors(8, {1, 0}));
  Floats scores = {inf, 0.25F, 0.5F, 0.5F, 0.5F, inf, 0.0F, 0.125F};  // token 0 is protected and token 5 splits its run
  run_cpu(KeyLinks{{layer.store.rows()}, KeyLinks::Kind::kPivots, 0.75F, nullptr, scores.data()});
  EXPECT_EQ(scores, (Floats{inf, -4.0F, 0.5F, 0.5F, -2.0F, inf, 0.0F, 0.125F}));
}

TEST(KeyPivots, KeepsTheOrderOfThoseThatItLowers) {
  SmallLayer layer(SmallLayer::Vectors(5, {1, 0}), SmallLayer::Vectors(5, {1, 0}));
  Floats scores = {1e-6F, 0.0F, 2.0F, 1e-3F, 1.0F};
  run_cpu(KeyLinks{{layer.store.rows()}, KeyLinks::Kind::kPivots, 0.75F, nullptr, scores.data()});
  EXPECT_EQ(scores[2], 2.0F);
  EXPECT_LT(scores[1], scores[0]);
  EXPECT_LT(scores[0], scores[3]);
  EXPECT_LT(scores[3], scores[4]);
  EXPECT_LT(scores[4], 0.0F);
}

TEST(MergeGate, RunningMeanPerSequence) {
  SmallLayer layer(SmallLayer::Vectors(3, {1, 0}), SmallLayer::Vectors(3, {1, 0}));
  const KeptLists lists({{0}});
  Parted parted(layer, lists);
  float thresholds[] = {9, -2};
  const std::int32_t line = 1;
  const auto gated = [&](const Floats& similarity) {
    parted.target = {0, 0};
    run_cpu(MergeGate{parted.rows, similarity.data(), parted.target.data(), true, thresholds, &line, 0.25F, 0, false});
    return parted.target;
  };
  EXPECT_EQ(gated({0.2F, 0.6F}), (Ints{-1, 0}));
  EXPECT_FLOAT_EQ(thresholds[1], 0.4F);
  EXPECT_EQ(gated({0.5F, 0.9F}), (Ints{0, 0}));
  EXPECT_FLOAT_EQ(thresholds[1], 0.75F * 0.4F + 0.25F * 0.7F);
  EXPECT_EQ(thresholds[0], 9);
}

TEST(MergeGate, HeadsDecideTogether) {
  SmallLayer layer(SmallLayer::Vectors(3, {1, 0}), SmallLayer::Vectors(3, {1, 0}), 2);
  const KeptLists lists({{0}, {0}});
  Parted parted(layer, lists);
  const Floats similarity = {0.9F, 0.1F, 0.3F, 0.2F};
  run_cpu(MergeGate{parted.rows, similarity.data(), parted.target.data(), false, nullptr, nullptr, 0.5F, 0.5F, true});
  EXPECT_EQ(parted.target, (Ints{0, -1, 0, -1}));  // means 0.6 and 0.15
}

// Token 0 (k = (1,0), v = (2,0)) takes in token 1 ((0,1), (0,4)) and token 2 ((1,1), (6,0)).
Floats merged(MergeInto merge, bool value) {
  SmallLayer layer({{1, 0}, {0, 1}, {1, 1}}, {{2, 0}, {0, 4}, {6, 0}});
  const KeptLists lists({{0}});
  Parted parted(layer, lists);
  parted.similarity = {0.0F, 0.5F};
  merge.rows = parted.rows, merge.target = parted.target.data(), merge.similarity = parted.similarity.data();
  run_cpu(merge);
  return value ? layer.value(0, 0) : layer.key(0, 0);
}

void expect_near(const Floats& found, const std::vector<double>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-6) << i;
}

TEST(MergeInto, ByHand) {
  MergeInto merge;
  expect_near(merged(merge, false), {2.0 / 3, 2.0 / 3});
  expect_near(merged(merge, true), {8.0 / 3, 4.0 / 3});
  merge.combine = MergeInto::Combine::kPivot;
  expect_near(merged(merge, true), {(2 * 2 + 3) / 3.0, 2.0 / 3});  // (2 + (0 + 2) / 2 + (6 + 2) / 2) / 3
  merge.combine = MergeInto::Combine::kMean;
  merge.weight = MergeInto::Weight::kSimilarity;
  expect_near(merged(merge, true), {5.0 / 3, 0});
  merge.combine = MergeInto::Combine::kWeightedMean;
  expect_near(merged(merge, true), {5.0 / 1.5, 0});
  merge.weight = MergeInto::Weight::kSoftmax;
  const double e = std::exp(1.0), r = std::exp(0.5), all = e + 1 + r;
  expect_near(merged(merge, true), {(2 * e + 6 * r) / all, 4 / all});
  merge.weight = MergeInto::Weight::kNormShare;
  expect_near(merged(merge, true), {(2 + 0.375 * 6) / 1.375, 0});
  const float mass[] = {0.5F, 0.25F, 1.0F}, none[] = {0.0F, 0.25F, 1.0F};
  merge.weight = MergeInto::Weight::kMassShare;
  merge.mass = mass;
  expect_near(merged(merge, true), {(2 + 2 * 6) / 3.5, 0.5 * 4 / 3.5});
  merge.mass = none;  // nothing attends to the kept token: its value does not count
  expect_near(merged(merge, true), {2, 0});
  merge.weight = MergeInto::Weight::kGaussian;
  merge.sigma = 2;
  merge.values_times_count = true;
  const double w1 = std::exp(-2 / 8.0), w2 = std::exp(-1 / 8.0);
  expect_near(merged(merge, false), {(1 + w2) / (1 + w1 + w2), (w1 + w2) / (1 + w1 + w2)});
  expect_near(merged(merge, true), {3 * (2 + 6 * w2) / (1 + w1 + w2), 3 * 4 * w1 / (1 + w1 + w2)});
}

TEST(MergeInto, ValuesAloneLeaveKeys) {
  MergeInto merge;
  merge.keys = false;
  expect_near(merged(merge, false), {1, 0});
  expect_near(merged(merge, true), {8.0 / 3, 4.0 / 3});
}

TEST(MergeInto, ZeroNormsAndNegativeSimilaritiesChangeNothingBad) {
  SmallLayer layer({{1, 0}, {0, 0}}, {{0, 0}, {0, 0}});
  const KeptLists lists({{0}});
  Parted parted(layer, lists);
  parted.similarity = {-1.0F};
  MergeInto merge{parted.rows, parted.target.data(), parted.similarity.data()};
  merge.combine = MergeInto::Combine::kWeightedMean;
  for (const auto weight : {MergeInto::Weight::kNormShare, MergeInto::Weight::kSimilarity}) {
    merge.weight = weight;
    run_cpu(merge);
    EXPECT_EQ(layer.key(0, 0), (Floats{1, 0}));
    EXPECT_EQ(layer.value(0, 0), (Floats{0, 0}));
  }
}

// Values after a merge of one row with these masses; token i has value {10^i, -10^i}.
Floats merged_by_mass(const Floats& mass, const Ints& kept, std::int32_t window, std::int64_t seed = 1) {
  SmallLayer::Vectors k, v;
  float x = 1;
  for (std::size_t i = 0; i < mass.size(); ++i, x *= 10) k.push_back({1, 2}), v.push_back({x, -x});
  SmallLayer layer(k, v);
  const KeptLists lists({kept});
  Parted parted(layer, lists);
  run_cpu(MergeWindow{parted.rows, window, mass.data(), &seed});
  Floats first;
  for (const std::int32_t i : kept) {
    first.push_back(layer.value(0, i)[0]);
    EXPECT_EQ(layer.value(0, i)[1], -first.back());
    EXPECT_EQ(layer.key(0, i), (Floats{1, 2}));
  }
  return first;
}

TEST(MergeWindow, ByHand) {
  EXPECT_EQ(merged_by_mass({2, 1, 1, 1}, {1, 2, 3}, 2), (Floats{10.5F, 100.5F, 1000}));
  EXPECT_EQ(merged_by_mass({1, 2, 1, 1}, {0, 2, 3}, 2), (Floats{1, 105, 1005}));
  EXPECT_EQ(merged_by_mass({3, 9, 1, 2}, {2, 3}, 1), (Floats{111, 1000}));  // two tokens join the same one
  // Near the end of the row the value is divided by the tokens that there are.
  EXPECT_EQ(merged_by_mass({1, 9, 1, 1}, {0, 2, 3}, 32), (Floats{1, 105, 1005}));
  EXPECT_EQ(merged_by_mass({1, 1, 1, 9}, {0, 1, 2}, 32), (Floats{1, 10, 100}));  // no later token: deleted
  EXPECT_EQ(merged_by_mass({1}, {}, 32), Floats{});
  EXPECT_EQ(merged_by_mass({1, 0, 0}, {1, 2}, 2), (Floats{10.5F, 100.5F}));  // infinite ratio: certain
  EXPECT_EQ(merged_by_mass({0, 0, 0}, {1, 2}, 2), (Floats{10, 100}));        // 0 / 0: never
  EXPECT_EQ(merged_by_mass({0, 1, 1}, {1, 2}, 2), (Floats{10, 100}));
}

TEST(MergeWindow, JoinsWithTheRatioAsProbability) {
  int joined = 0;
  for (std::int64_t seed = 0; seed < 4000; ++seed) {
    const Floats a = merged_by_mass({1, 3, 5}, {1, 2}, 2, seed);
    EXPECT_EQ(a, merged_by_mass({1, 3, 5}, {1, 2}, 2, seed));
    joined += a[0] > 10 ? 1 : 0;
  }
  EXPECT_NEAR(joined / 4000.0, 0.25, 0.03);  // 4 deviations
}

ChannelStats mean_dropped(const PartedRows& rows, const std::int32_t* line, const std::int32_t* before, Floats& k, Floats& v) {
  const ListedTokens dropped{rows.kv, rows.dropped_first, rows.dropped};
  return {rows.kv, {}, ChannelStats::Kind::kRunningMean, dropped, nullptr, line, {}, k.data(), before, v.data()};
}

TEST(MeanDropped, RunsOnFromWhatWasDroppedBefore) {
  SmallLayer layer({{1, 0}, {3, 0}, {5, 6}}, {{0, 2}, {0, 4}, {0, 6}}, 2);
  const KeptLists lists({{2}, {0, 1, 2}});
  Parted parted(layer, lists);
  const std::int32_t line[] = {1, 0}, before[] = {2, 7};
  Floats k = {9, 9, 5, 4}, v = {8, 8, 1, 1};
  run_cpu(mean_dropped(parted.rows, line, before, k, v));
  EXPECT_EQ(k, (Floats{9, 9, 3.5F, 2}));  // (2 * 5 + 1 + 3) / 4, (2 * 4 + 0) / 4
  EXPECT_EQ(v, (Floats{8, 8, 0.5F, 2}));  // (2 * 1 + 0 + 0) / 4, (2 * 1 + 2 + 4) / 4
}

TEST(MeanDropped, FirstMeanIgnoresWhatLayThere) {
  SmallLayer layer({{1, 0}}, {{2, 3}});
  const KeptLists lists(std::initializer_list<Ints>{{}});
  Parted parted(layer, lists);
  const std::int32_t zero = 0;
  Floats k(2, std::numeric_limits<float>::quiet_NaN()), v = k;
  run_cpu(mean_dropped(parted.rows, &zero, &zero, k, v));
  EXPECT_EQ(k, (Floats{1, 0}));
  EXPECT_EQ(v, (Floats{2, 3}));
}

TEST(TokenCopy, DroppedKeysBeforeValues) {
  SmallLayer layer({{1, 2}, {3, 4}, {5, 6}}, {{7, 8}, {9, 10}, {11, 12}}, 2);
  const KeptLists lists({{1}, {0, 1}});
  Parted parted(layer, lists);
  Floats packed(12);
  Ints position(3);
  const TokenCopy copy = copy_dropped(parted.rows, packed.data(), position.data());
  run_cpu(copy);
  EXPECT_EQ(packed, (Floats{1, 2, 7, 8, 5, 6, 11, 12, 5, 6, 111, 112}));
  EXPECT_EQ(position, (Ints{0, 2, 2}));
  EXPECT_EQ(call(copy).bytes, 3 * (2 * 2 * 2 * 2 + 12));
}

TEST(TakeDue, ListsEachDroppedTokenOnce) {
  SmallLayer layer(SmallLayer::Vectors(5, {1, 0}), SmallLayer::Vectors(5, {1, 0}), 1, 2);
  const std::int64_t first[] = {0, 3};
  const auto due = [&](const KeptLists& lists) {
    Ints index(3, 99);
    Parted parted(layer, lists);
    run_cpu(TakeDue{parted.rows.kv, 1, 1, 0, 1, first, index.data(), true, parted.rows.dropped_first, parted.rows.dropped});
    return index;
  };
  EXPECT_EQ(due(KeptLists({{1, 4}})), (Ints{0, 2, 3}));
  EXPECT_EQ(due(KeptLists(std::initializer_list<Ints>{{4}})), (Ints{1, -1, -1}));
}

TEST(ChannelDivisors, IsTheRootOfTheRatioOfMaxima) {
  for (const std::int32_t group : {1, 3, 4, 8}) {
    RandomLayer layer({1, 2 * group, 2, 8, 16}, 2, 17, 5);
    const auto queries = layer.last_queries(1 << 30);
    Floats q(32, 0.5F), k(32, 4.0F);
    const std::int32_t line[] = {3, -1, 0, 1};
    ChannelStats stats{layer.store.rows(), ChannelStats::Source::kQueries};
    stats.queries = queries.data(), stats.line = line, stats.into = ChannelStats::Into::kRaise, stats.out = q.data();
    run_cpu(stats);
    for (const std::int32_t r : {0, 2, 3}) {
      for (std::int32_t c = 0; c < 8; ++c) {
        float largest = 0.5F;
        for (std::int32_t t = 0; t < 17; ++t)
          for (std::int32_t g = 0; g < group; ++g)
            largest =
                std::max(largest, std::fabs(queries[static_cast<std::size_t>(r / 2)].data[(t * 2 * group + r % 2 * group + g) * 8 + c]));
        EXPECT_EQ(q[static_cast<std::size_t>(line[r] * 8 + c)], largest) << group;
      }
    }
    for (std::size_t c = 16; c < 24; ++c) EXPECT_EQ(q[c], 0.5F);
    q[0] = 0, k[1] = 0;
    ChannelDivisors balance{4, 8, line, ChannelDivisors::Kind::kBalance, k.data()};
    balance.largest_q = q.data();
    run_cpu(balance);
    EXPECT_EQ(k[0], 1);
    EXPECT_EQ(k[1], 1);
    EXPECT_FLOAT_EQ(k[2], std::sqrt(4 / q[2]));
    EXPECT_EQ(k[16], 4);  // left out
  }
}

}  // namespace
}  // namespace kvlab::test
