#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "kernels/allocate/count_scores_op.h"
#include "kernels/score/pool1d_op.h"
#include "kernels/select/cluster/cluster.h"
#include "kernels/select/copy_queries_op.h"
#include "kernels/select/mean_query_op.h"
#include "kernels/select/page_scores/page_scores.h"
#include "kernels/select/page_summaries_op.h"
#include "kernels/select/unit_lists_op.h"
#include "policies/kv/selector/halving_search_op.h"
#include "tests/kernels/paged_rows.h"

namespace kvlab {
namespace {

using Ints = std::vector<std::int32_t>;
using Longs = std::vector<std::int64_t>;
using Floats = std::vector<float>;

// One row of keys [n, d] in consecutive slots.
struct OneRow : PagedRows {
  OneRow(const Floats& keys, std::int32_t d) : OneRow(keys, d, static_cast<std::int32_t>(keys.size()) / d) {}
  OneRow(const Floats& keys, std::int32_t d, std::int32_t n) : PagedRows({n}, d, n) { std::copy(keys.begin(), keys.end(), k.begin()); }
};

// Older keys may be encoded by now: what they were is in the mean.
TEST(PageMeans, WindowsOverlapAndGrowWithTheRow) {
  for (const std::int32_t before : {0, 1, 3, 4, 5, 7, 8, 9, 10}) {
    OneRow row({0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, 1);
    Floats means(5, -1.0F);
    float* to = means.data();
    const std::int32_t zero = 0;
    row.len[0] = before;
    run_cpu(PageSummaries{row.kv, 4, 2, &zero, &to});
    std::fill_n(row.k.begin(), before, 100.0F);
    row.len[0] = 10;
    const PageSummaries rest{row.kv, 4, 2, &before, &to};
    run_cpu(rest);
    EXPECT_EQ(means, (Floats{1.5F, 3.5F, 5.5F, 7.5F, 8.5F})) << before;
    EXPECT_EQ(call(rest).outputs, before == 10 ? 0 : 5 - std::max(0, before < 4 ? 0 : (before - 4) / 2 + 1));
    if (before != 7) continue;
    // Keys 7, 8, 9; windows 2 and 3 had begun, window 4 had not. Key 7 goes into windows 2 and 3, 8 and 9 into 3 and 4.
    EXPECT_EQ(call(rest), (OpCall{.op = "page_means", .rows = 1, .tokens = 3, .outputs = 3, .bytes = (3 + 3 + 2) * 2, .flops = 6 + 2}));
  }
}

TEST(PageBounds, FoldsNewTokensInAndStartsPagesAnew) {
  OneRow row({3, -1, 4, 1, -5, 9, 2}, 1);
  Floats bounds(6, 100.0F);
  float* to = bounds.data();
  std::int32_t from = 0;
  row.len[0] = 2;
  run_cpu(PageSummaries{row.kv, 3, 3, &from, &to, PageSummaries::Kind::kBounds});
  EXPECT_EQ(bounds, (Floats{-1, 3, 100, 100, 100, 100}));
  from = 2, row.len[0] = 7;
  const PageSummaries rest{row.kv, 3, 3, &from, &to, PageSummaries::Kind::kBounds};
  run_cpu(rest);
  EXPECT_EQ(bounds, (Floats{-1, 4, -5, 9, 2, 2}));
  EXPECT_EQ(call(rest), (OpCall{.op = "page_bounds", .rows = 1, .tokens = 5, .outputs = 3, .bytes = (5 + 6 + 2) * 2, .flops = 10}));
  from = 7;
  EXPECT_EQ(call(PageSummaries{row.kv, 3, 3, &from, &to, PageSummaries::Kind::kBounds}).bytes, 0);
}

TEST(PageScores, SoftmaxCountsClustersByTheirSizes) {
  const Floats q{2.0F}, means{0.0F, std::log(3.0F) / 2, 0.0F};
  const Ints sizes{1, 2, 3};
  const Longs first{0, 3};
  const float* summaries = means.data();
  const std::int32_t* size_rows = sizes.data();
  const Queries queries{q.data(), 1, 0};
  Floats out(3);
  PageScores scores;
  scores.num_rows = scores.head_dim = 1, scores.queries = &queries, scores.summaries = &summaries, scores.sizes = &size_rows;
  scores.weighs_sizes = scores.softmax = true, scores.kind = PageScores::Kind::kDot;
  scores.first = first.data(), scores.scores = out.data();
  run_cpu(scores);  // 1 / (1 + 2 * 3 + 3) each, the second three times that
  EXPECT_NEAR(out[0], 0.1, 1e-6);
  EXPECT_NEAR(out[1], 0.3, 1e-6);
  EXPECT_NEAR(out[2], 0.1, 1e-6);
}

TEST(Pool1d, LooksAtAllUnitsThatTouchABlock) {
  const Floats in{9, 1, 2, 8, 3, 4, 5};
  const Longs in_first{0, 7}, first{0, 3};
  Floats out(3);
  run_cpu(Pool1d{1, first.data(), nullptr, nullptr, out.data(), 4, Pool1d::Kind::kBlockMax, false, 1, 3, 1, in_first.data(), in.data()});
  EXPECT_EQ(out, (Floats{9, 8, 5}));  // [-1, 3), [2, 6), [5, 9)
}

TEST(UnitLists, UnionIsSortedAndSharesUnits) {
  const Ints unit{0, 3, 5, 1, 3, 2, 9};
  const Longs first{0, 3, 5, 5, 7}, room{0, 5, 7};
  const UnitLists lists{first.data(), unit.data()};
  Ints out(7, -1), count(2);
  run_cpu(UnionUnits{2, 2, lists, room.data(), out.data(), count.data()});
  EXPECT_EQ(count, (Ints{4, 2}));
  EXPECT_EQ(out, (Ints{0, 1, 3, 5, -1, 2, 9}));
}

TEST(UnitLists, RankedListsGiveTheirBestInOrder) {
  const Ints unit{1, 2, 4, 7};
  const Longs first{0, 4}, score_first{0, 8}, take{0, 3};
  const Floats scores{9, 1, 5, 9, 5, 9, 9, 2};
  const UnitLists lists{first.data(), unit.data()};
  Ints ranked(4), best(3);
  std::int32_t* to = ranked.data();
  run_cpu(SortUnits{1, lists, SortUnits::Kind::kByScore, score_first.data(), scores.data(), &to});
  EXPECT_EQ(ranked, (Ints{2, 4, 7, 1}));
  run_cpu(SortUnits{.num_rows = 1, .lists = {.rows = &to}, .kind = SortUnits::Kind::kByUnit, .first = take.data(), .unit = best.data()});
  EXPECT_EQ(best, (Ints{2, 4, 7}));
}

TEST(UnitLists, ReuseCountsCommonUnitsAndRemembersTheList) {
  Ints last{1, 4, 6, 0}, now{0, 4, 5, 6};
  const Longs first{0, 4};
  const UnitLists lists{first.data(), now.data()};
  std::int32_t* memory = last.data();
  const std::int32_t count = 3;
  std::int32_t hits = -1;
  run_cpu(TrackReuse{1, lists, lists, &memory, &count, nullptr, &hits});
  EXPECT_EQ(hits, 2);
  EXPECT_EQ(last, now);
}

// Eight blocks, two stay. Middle tokens: of [0, 4) token 2, [4, 8) token 6; their halves [0, 2) 1, [2, 4) 3, [4, 6) 5, [6, 8) 7.
TEST(HalvingSearch, FollowsMiddlesAndMissesANeedleBesideThem) {
  for (const bool needle : {false, true}) {
    OneRow row({0, 2, 1, 3, 0, 1, 0, 4}, 1);
    if (needle) row.k[4] = 100;
    const Floats q{1.0F};
    const Queries queries{q.data(), 1, 0};
    const std::int32_t base = 0, blocks = 8, keep = 2;
    const Longs first{0, 2};
    Ints found(2);
    const HalvingSearch search{row.kv, &queries, 1, &base, &blocks, &keep, first.data(), found.data()};
    run_cpu(search);  // keeps [2, 4) and [6, 8), then of tokens 2, 3, 6, 7 the largest
    EXPECT_EQ(found, (Ints{3, 7}));
    EXPECT_EQ(search.rounds(0), 2);
    EXPECT_EQ(call(search).tokens, 8);
  }
}

struct Clustered {
  Clustered(const Floats& keys, std::int32_t d, std::int32_t clusters, std::int32_t rounds)
      : row(keys, d), of(static_cast<std::size_t>(row.len[0])), sizes(static_cast<std::size_t>(clusters)), centroids(sizes.size() * 2) {
    std::int32_t *to = of.data(), *size = sizes.data();
    float* centroid = centroids.data();
    run_cpu(ClusterKeys{row.kv, row.len.data(), &clusters, rounds, &to, &centroid, &size});
  }
  OneRow row;
  Ints of, sizes;
  Floats centroids;
};

TEST(ClusterKeys, FindsDirectionsAndAveragesKeysAsTheyAre) {
  const Clustered c({1, 0, 0, 2, 3, 0.3F, -0.1F, 1, -2, 0, 5, 0}, 2, 3, 10);  // begins with tokens 1, 3, 5
  EXPECT_EQ(c.of, (Ints{2, 0, 2, 0, 1, 2}));
  EXPECT_EQ(c.sizes, (Ints{2, 1, 3}));
  EXPECT_NEAR(c.centroids[0], -0.05, 1e-6);
  EXPECT_NEAR(c.centroids[1], 1.5, 1e-6);
  EXPECT_NEAR(c.centroids[4], 3, 1e-6);
  EXPECT_NEAR(c.centroids[5], 0.1, 1e-6);
}

TEST(ClusterKeys, OneClusterPerTokenLeavesKeysAsTheyAre) {
  const Clustered c({1, 0, 0, 2, -3, 0.3F}, 2, 3, 3);
  EXPECT_EQ(c.centroids, c.row.k);
  EXPECT_EQ(c.sizes, (Ints{1, 1, 1}));
}

TEST(ClusterThreshold, KeepsTheShareOfTokensThatFits) {
  const Floats q{1.0F}, means{0.0F, 1.0F, 2.0F};
  const Ints sizes{4, 4, 2};
  const std::int32_t clusters = 3;
  const float* centroid = means.data();
  const std::int32_t* size = sizes.data();
  const Queries queries{q.data(), 1, 0};
  const double z = 4 + 4 * std::exp(1.0) + 2 * std::exp(2.0);
  float threshold = 0;
  float* to = &threshold;
  // Ten tokens: 2 in the heaviest cluster, then 4, then 4.
  const auto run = [&](double keep) {
    run_cpu(ClusterThreshold{1, 1, 1, 1, 2, &queries, &clusters, &centroid, &size, &keep, &to});
    return static_cast<double>(threshold);
  };
  EXPECT_NEAR(run(0.15), std::exp(2.0) / z, 1e-6);
  EXPECT_NEAR(run(0.2), std::exp(1.0) / z, 1e-6);
  EXPECT_NEAR(run(0.65), 1 / z, 1e-6);
  EXPECT_EQ(run(1), -1);
  const Floats weights{0.1F, 0.2F, 0.3F};
  const Ints cluster_of{2, 0, 1, 2, 0};
  const Longs score_first{0, 3}, first{0, 5};
  const std::int32_t *of = cluster_of.data(), five = 5;
  Ints tokens(5), count(1);
  threshold = 0.1F;
  const UnitLists lists{nullptr, nullptr, &of, &five};
  SelectUnits chosen{1, 1, SelectUnits::Kind::kClusters, lists, score_first.data(), weights.data(), nullptr, &to, first.data()};
  chosen.unit = tokens.data(), chosen.count = count.data();
  run_cpu(chosen);
  EXPECT_EQ(count[0], 3);
  EXPECT_EQ((Ints{tokens.begin(), tokens.begin() + 3}), (Ints{0, 2, 3}));
}

TEST(CopyQueries, KeepsTheNewestByPosition) {
  Floats ring(3, -1.0F), q{1, 2, 3, 4, 5};
  float* to = ring.data();
  const Queries queries{q.data(), 5, 7};  // positions 7 to 11
  run_cpu(CopyQueries{1, 1, 1, &queries, &to, CopyQueries::Kind::kRing, 3});
  EXPECT_EQ(ring, (Floats{3, 4, 5}));  // 9, 10, 11
  run_cpu(CopyQueries{1, 1, 1, &queries, &to, CopyQueries::Kind::kRing, 1});
  EXPECT_EQ(ring, (Floats{5, 4, 5}));
}

TEST(MeanQuery, QueriesThatStandOutCountMore) {
  const Floats ring{0, 0, 0, 4};  // mean 1, distances 1, 1, 1, 3, deviation sqrt(3)
  const Queries held{ring.data(), 4, 0};
  float probe = 0;
  run_cpu(MeanQuery{1, 1, &held, &probe, MeanQuery::Kind::kProbe});
  const double far = std::exp(std::sqrt(3.0)), near = std::exp(1 / std::sqrt(3.0));
  EXPECT_NEAR(probe, 4 * far / (far + 3 * near), 1e-6);
}

TEST(CountScores, SpreadLayersGetMore) {
  const Longs first{0, 4};
  const Floats flat(4, 0.25F), sure{1, 0, 0, 0};
  Floats entropies{0, static_cast<float>(std::log(2.0)), 0};
  float* known = entropies.data();
  std::int32_t average = 1, keep = 0;
  CountScores share{1, first.data(), flat.data(), CountScores::Kind::kEntropyShare, 0, &keep, 1, &average, nullptr, {}, 0, &known, 0, 3};
  run_cpu(share);  // log 4 over the mean of log 4, log 2
  EXPECT_EQ(keep, 1);
  average = 3;
  run_cpu(share);
  EXPECT_EQ(keep, 4);
  share.scores = sure.data(), share.layer = 2;
  run_cpu(share);  // nothing to compare with: the average
  EXPECT_EQ(keep, 3);
  EXPECT_EQ(entropies[2], 0);
}

}  // namespace
}  // namespace kvlab
