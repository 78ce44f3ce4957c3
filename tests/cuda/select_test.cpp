#include "kernels/allocate/count_scores_op.h"
#include "kernels/score/mark_top_op.h"
#include "kernels/select/cluster/cluster.h"
#include "kernels/select/page_scores/page_scores.h"
#include "kernels/select/page_summaries_op.h"
#include "kernels/select/top_k/top_k.h"
#include "kernels/select/unit_lists_op.h"
#include "tests/cuda/rows_fixture.h"

namespace kvlab {
namespace {

// Scores of attention: few large ones; some equal, -infinity, NaN, both zeros.
std::vector<float> drawn_scores(std::int64_t n, std::uint64_t seed, bool special = true) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(-8.0F, 3.0F);
  std::vector<float> x(static_cast<std::size_t>(n));
  for (float& s : x) {
    s = std::exp(normal(random));
    if (!special) continue;
    const std::uint64_t kind = random() % 16;
    if (kind == 0) s = 0.25F;
    if (kind == 1) s = random() % 2 == 0 ? -0.0F : 0.0F;
    if (kind == 2) s = random() % 2 == 0 ? -kInf : -s;
    if (kind == 3) s = random() % 4 == 0 ? std::numeric_limits<float>::quiet_NaN() : s;
    if (kind == 4) s = random() % 8 == 0 ? kInf : 3e38F;
  }
  return x;
}

class SelectCuda : public CudaTest {
 protected:
  void check_top_k(const Ints& len, const Ints& keep, std::uint64_t seed) {
    const Longs first = prefix_sums(len), index_first = prefix_sums(keep);
    Twice<float> scores(drawn_scores(first.back(), seed));
    const auto rows = static_cast<std::int32_t>(len.size());
    EXPECT_TRUE(equal(both<std::int32_t>(index_first.back(), [&](bool gpu, std::int32_t* index) {
      return TopK{rows, first.data(), scores.at(gpu), keep.data(), index_first.data(), index};
    })));
  }
};

TEST_F(SelectCuda, TopKEqualsCpuVersion) {
  check_top_k({}, {}, 1);
  check_top_k({0, 1, 1, 2, 31}, {0, 0, 1, 1, 30}, 2);
  check_top_k({509, 510, 32, 33, 64, 127}, {1, 509, 32, 7, 64, 63}, 3);  // 512 keys to a block at most, a row's gap of up to 3 included
  check_top_k({512, 128}, {100, 128}, 4);                                // no gaps
  check_top_k({2045, 7, 0, 513}, {1023, 3, 0, 512}, 5);
  check_top_k({8189, 100}, {4096, 1}, 6);
  check_top_k({16384}, {1}, 7);
  check_top_k({32768}, {4096}, 8);  // the longest that a block holds
  check_top_k({32765, 3}, {16382, 2}, 9);
  check_top_k({32769, 0, 5}, {16400, 0, 5}, 10);  // three blocks to a row
  check_top_k({1, 33000, 16384}, {1, 32999, 0}, 11);
}

TEST_F(SelectCuda, EqualScoresFallToTheLowerIndex) {
  const Longs first{0, 3000}, index_first{0, 1234};
  const std::int32_t keep = 1234;
  for (const float value : {0.0F, -kInf, kInf, std::numeric_limits<float>::quiet_NaN()}) {
    const DeviceBuffer<float> scores(std::vector<float>(3000, value));
    const DeviceBuffer<std::int32_t> index(1234);
    run_cuda(TopK{1, first.data(), scores.data(), &keep, index_first.data(), index.data()}, cuda());
    Ints expected(1234);
    std::iota(expected.begin(), expected.end(), 0);
    EXPECT_EQ(index.to_host(cuda().stream()), expected);
  }
}

TEST_F(SelectCuda, TiesOfAPeerAreRefused) {
  const Longs first{0, 0};
  const std::int32_t keep = 0;
  EXPECT_THROW(run_cuda(TopK{1, first.data(), nullptr, &keep, first.data(), nullptr, true}, cuda()), CudaError);
  EXPECT_THROW(run_cuda(MarkTop{1, first.data(), nullptr, &keep, nullptr, 1.0F, true}, cuda()), CudaError);
}

TEST_F(SelectCuda, PooledCountsEqualCpuVersion) {
  std::mt19937_64 random(12);
  for (int round = 0; round < 6; ++round) {
    const std::int32_t pools = round == 0 ? 0 : 1 + static_cast<std::int32_t>(random() % 2),
                       per_pool = 1 + static_cast<std::int32_t>(random() % 3);
    Ints len, floor;
    for (std::int32_t r = 0; r < pools * per_pool; ++r) {
      len.push_back(static_cast<std::int32_t>(round == 5 ? 16000 + random() % 1000 : random() % 5 == 0 ? 0 : random() % 700));
      floor.push_back(static_cast<std::int32_t>(random() % 4 == 0 ? random() % 900 : random() % 30));
    }
    const Longs first = prefix_sums(len);
    Longs budget;
    for (std::int32_t p = 0; p < pools; ++p)
      budget.push_back(
          static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(first[(p + 1) * per_pool] - first[p * per_pool] + 20)));
    Twice<float> scores(drawn_scores(first.back(), 100 + static_cast<std::uint64_t>(round)));
    for (const bool with_floor : {false, true}) {
      SCOPED_TRACE(testing::Message() << "round " << round << (with_floor ? " with floors" : ""));
      Ints counts[2] = {Ints(len.size(), -1), Ints(len.size(), -1)};
      const auto op_of = [&](bool gpu) {
        TopK op{pools * per_pool, first.data(), scores.at(gpu)};
        op.kind = TopK::Kind::kCounts, op.rows_per_pool = per_pool, op.budget = budget.data();
        op.floor_tokens = with_floor ? floor.data() : nullptr, op.count = counts[gpu].data();
        return op;
      };
      run_both(op_of);
      EXPECT_EQ(counts[1], counts[0]);
      std::vector<const float*> apart;
      for (std::size_t r = 0; r < len.size(); ++r) apart.push_back(scores.at(true) + first[r]);
      std::fill(counts[1].begin(), counts[1].end(), -1);
      TopK op = op_of(true);
      op.scores = nullptr, op.row_scores = apart.data();
      run_cuda(op, cuda());
      EXPECT_EQ(counts[1], counts[0]);
    }
  }
}

TEST_F(SelectCuda, CountScoresEqualsCpuVersion) {
  const Ints len{0, 1, 5000, 64, 300, 7};
  const Longs first = prefix_sums(len);
  const auto check = [&](const std::vector<float>& scores, CountScores::Kind kind, std::initializer_list<double> limits) {
    Twice<float> x(scores);
    for (const double limit : limits) {
      const auto counts =
          on_host(Ints(6, -1), [&](bool gpu, std::int32_t* out) { return CountScores{6, first.data(), x.at(gpu), kind, limit, out}; });
      EXPECT_TRUE(equal(counts)) << limit;
    }
  };
  std::vector<float> scores = drawn_scores(first.back(), 30);
  for (const auto kind : {CountScores::Kind::kAtLeast, CountScores::Kind::kAbove})
    check(scores, kind, {-HUGE_VAL, 0.0, 0.25, double{0.01F}, HUGE_VAL});
  scores = drawn_scores(first.back(), 31, false);
  std::fill(scores.begin() + first[4] + 100, scores.begin() + first[5], 0.0F);  // the share 1 is reached before the row's end
  std::fill(scores.begin() + first[5], scores.end(), 0.0F);                     // at once
  for (std::size_t r = 0; r < len.size(); ++r) std::sort(scores.begin() + first[r], scores.begin() + first[r + 1], std::greater<>());
  check(scores, CountScores::Kind::kLeadingMass, {0.0, 0.3, 0.9, 1.0});
}

// Keys around a few directions, so that no key is between two centres: assignments are the same, means differ by their order of
// summation.
TEST_F(CudaTest, ClusterKeys) {
  constexpr std::int32_t kDim = 40;
  const Ints len{0, 5, 130, 200}, tokens{0, 5, 128, 0}, clusters{0, 5, 70, 9};
  RowsFixture<f16> rows({.kv_heads = 2, .head_dim = kDim, .page_tokens = 16}, len, 1, 0.1F);
  const std::vector<float> directions = random_elements<float>(20 * kDim, 2, 3.0F);
  std::mt19937 random(3);
  rows.for_each_token([&](std::int32_t, std::int32_t, std::size_t slot) {
    const std::size_t of = random() % 20;
    for (std::size_t c = 0; c < kDim; ++c)
      rows.k[slot * kDim + c] = to_float(from_float<f16>(rows.k[slot * kDim + c] + directions[of * kDim + c]));
  });
  rows.upload();
  Longs token_room, cluster_room, centroid_room;
  for (std::size_t r = 0; r < 4; ++r)
    token_room.push_back(tokens[r]), cluster_room.push_back(clusters[r]), centroid_room.push_back(kDim * clusters[r]);
  RowArrays<std::int32_t> cluster_of(token_room, -3), sizes(cluster_room, -3);
  RowArrays<float> centroids(centroid_room, 0.5F);
  run_cpu(ClusterKeys{rows.host(), tokens.data(), clusters.data(), 4, cluster_of.at(false), centroids.at(false), sizes.at(false)});
  for (const auto order : {emulated::Order::kForward, emulated::Order::kShuffled}) {
    emulated::set_order(order);
    run_cuda(ClusterKeys{rows.device(), tokens.data(), clusters.data(), 4, cluster_of.at(true), centroids.at(true), sizes.at(true)},
             cuda());
    EXPECT_TRUE(same(cluster_of, sizes));
    EXPECT_TRUE(all_near(centroids.device(cuda()), centroids.host(), 1e-6, 1e-5));
  }
  emulated::set_order(emulated::Order::kForward);
}

// Weights are probabilities of fp32 sums in another order: the threshold is one of them, and the same one.
TEST_F(CudaTest, ClusterThreshold) {
  constexpr std::int32_t kDim = 40, kGroup = 2;
  const Ints clusters{30, 7, 0, 1, 20, 20};
  const QueriesFixture queries({3, 1, 0}, {50, 60, 70}, 2 * kGroup, kDim, 6);
  Longs cluster_room, centroid_room;
  for (const std::int32_t k : clusters) cluster_room.push_back(k), centroid_room.push_back(kDim * k);
  RowArrays<std::int32_t> sizes(cluster_room);
  RowArrays<float> centroids(centroid_room);
  for (std::size_t r = 0; r < clusters.size(); ++r) {
    centroids.row(r) = random_elements<float>(centroid_room[r], 7 + r);
    for (std::size_t c = 0; c < sizes.row(r).size(); ++c) sizes.row(r)[c] = static_cast<std::int32_t>((c + 1) % 5);
  }
  centroids.upload(), sizes.upload();
  for (const double frac : {0.0, 0.3, 1.0}) {
    const std::vector<double> keep(3, frac);
    RowArrays<float> threshold(Longs(3, 1), 7.0F);
    run_both([&](bool gpu) {
      return ClusterThreshold{
          6, 2, kGroup, kDim, 2, queries.at(gpu), clusters.data(), centroids.at(gpu), sizes.at(gpu), keep.data(), threshold.at(gpu)};
    });
    EXPECT_TRUE(all_near(threshold.device(cuda()), threshold.host(), 0, 1e-5)) << frac;
  }
}

TEST_F(CudaTest, TokensOfClusters) {
  const Longs score_first{0, 3, 10, 10, 15}, first{0, 300, 301, 301, 900};
  Twice<float> scores = normals(15, 4);
  RowArrays<float> threshold(Longs{1, 1}, 0.1F);
  RowArrays<std::int32_t> cluster_of(Longs{300, 1, 0, 599});
  std::mt19937 random(5);
  for (std::size_t r = 0; r < 4; ++r)
    for (std::int32_t& c : cluster_of.row(r))
      c = static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(score_first[r + 1] - score_first[r]));
  cluster_of.upload();
  const Ints tokens{300, 1, 0, 599};
  Ints count[2] = {Ints(4), Ints(4)};
  const auto [got, expected] = both(Ints(900, -1), [&](bool gpu, std::int32_t* unit) {
    const UnitLists lists{nullptr, nullptr, cluster_of.at(gpu), tokens.data()};
    return SelectUnits{4,
                       2,
                       SelectUnits::Kind::kClusters,
                       lists,
                       score_first.data(),
                       scores.at(gpu),
                       nullptr,
                       threshold.at(gpu),
                       first.data(),
                       unit,
                       nullptr,
                       count[gpu].data()};
  });
  EXPECT_EQ(count[1], count[0]);
  EXPECT_EQ(got, expected);
}

// Minimum, then maximum.
void order_bounds(std::vector<float>& x, std::int32_t head_dim) {
  const auto d = static_cast<std::size_t>(head_dim);
  for (std::size_t i = 0; i < x.size(); i += 2 * d)
    for (std::size_t c = i; c < i + d; ++c)
      if (x[c] > x[c + d]) std::swap(x[c], x[c + d]);
}

constexpr auto kBounds = PageSummaries::Kind::kBounds;

class PagesCuda : public CudaTest {
 protected:
  // Pages of the policy are not those of the memory.
  template <class T>
  void check_bounds(std::int32_t head_dim, std::int32_t page_tokens) {
    SCOPED_TRACE(testing::Message() << "head_dim " << head_dim << ", pages of " << page_tokens);
    const Ints len{0, 1, 16, 17, 100, 161};
    RowsFixture<T> rows({.head_dim = head_dim, .page_tokens = 24}, len, 1);
    Longs sizes;
    for (const std::int32_t n : len) sizes.push_back((n / page_tokens + 1LL) * 2 * head_dim);
    RowArrays<float> bounds(sizes, 0.5F);  // of pages that have begun
    for (const Ints& from : {Ints{0, 0, 0, 0, 0, 0}, Ints{0, 1, 3, 16, 99, 40}}) {
      run_both([&](bool gpu) { return PageSummaries{rows.at(gpu), page_tokens, page_tokens, from.data(), bounds.at(gpu), kBounds}; });
      EXPECT_TRUE(same(bounds));
    }
    RowArrays<float> parents(sizes);
    const Ints pages{0, 1, 1, 1, 2, 3}, zeros(len.size(), 0);
    run_both([&](bool gpu) {
      KvRows kv = rows.at(gpu);
      kv.len = pages.data();
      return PageSummaries{kv, 2, 2, zeros.data(), parents.at(gpu), PageSummaries::Kind::kNodes, bounds.at(gpu)};
    });
    EXPECT_TRUE(same(parents));
  }

  // Sums of at most 64 numbers in another order.
  template <class T>
  void check_means(std::int32_t head_dim, std::int32_t span, std::int32_t stride) {
    SCOPED_TRACE(testing::Message() << "head_dim " << head_dim << ", windows of " << span << " every " << stride);
    const Ints len{0, 1, 16, 17, 100, 161};
    RowsFixture<T> rows({.head_dim = head_dim, .page_tokens = 16}, len, 2);
    Longs sizes;
    for (const std::int32_t n : len) sizes.push_back((n / stride + 1LL) * head_dim);
    for (const Ints& from : {Ints{0, 0, 0, 0, 0, 0}, Ints{0, 1, 3, 16, 99, 40}}) {
      RowArrays<float> means(sizes, 0.5F);
      run_both([&](bool gpu) { return PageSummaries{rows.at(gpu), span, stride, from.data(), means.at(gpu)}; });
      EXPECT_TRUE(all_near(means.device(cuda()), means.host(), 1e-5, 1e-5));
    }
  }

  struct ScoreCase {
    std::int32_t group, head_dim;
    PageScores::Kind kind;
    PageScores::Heads heads;
    bool softmax, sizes, lists;
  };
  void check_scores(const ScoreCase& c) {
    SCOPED_TRACE(testing::Message() << "group " << c.group << ", head_dim " << c.head_dim << ", kind " << static_cast<int>(c.kind)
                                    << ", heads " << static_cast<int>(c.heads) << (c.softmax ? ", softmax" : "")
                                    << (c.sizes ? ", sizes" : "") << (c.lists ? ", lists" : ""));
    const Ints units{5, 1, 150, 129, 0, 0}, scored{c.lists ? 3 : 5, 1, c.lists ? 70 : 150, 129, 0, 0};
    const Longs first = prefix_sums(scored);
    const QueriesFixture queries({2, 1, 0}, {10, 20, 30}, 2 * c.group, c.head_dim, 5);
    Longs summary_sizes, unit_sizes;
    for (const std::int32_t n : units) summary_sizes.push_back(2LL * n * c.head_dim), unit_sizes.push_back(n);
    RowArrays<float> summaries(summary_sizes);
    RowArrays<std::int32_t> sizes(unit_sizes);
    Ints listed;
    for (std::size_t r = 0; r < 6; ++r) {
      summaries.row(r) = random_elements<float>(summary_sizes[r], 10 + r);
      if (c.kind == PageScores::Kind::kBound) order_bounds(summaries.row(r), c.head_dim);
      for (std::size_t u = 0; u < sizes.row(r).size(); ++u) sizes.row(r)[u] = static_cast<std::int32_t>(u % 7 + 1);
      for (std::int32_t i = 0; i < scored[r]; ++i) listed.push_back(i == 0 ? 0 : i + (units[r] - scored[r]));
    }
    summaries.upload(), sizes.upload();
    Twice<std::int32_t> unit(listed);
    const auto scores = both<float>(first.back() * (c.heads == PageScores::Heads::kEach ? c.group : 1), [&](bool gpu, float* out) {
      PageScores op;
      op.num_rows = 6, op.kv_heads = 2, op.group = c.group, op.head_dim = c.head_dim, op.first = first.data();
      op.kind = c.kind, op.heads = c.heads, op.softmax = c.softmax, op.weighs_sizes = c.sizes, op.lists_units = c.lists;
      op.queries = queries.at(gpu), op.summaries = summaries.at(gpu), op.sizes = sizes.at(gpu), op.unit = unit.at(gpu), op.scores = out;
      return op;
    });
    EXPECT_TRUE(all_near(scores, 2e-5, 2e-5));  // sums of at most 1,024 products in fp32, in another order
  }
};

TEST_F(PagesCuda, BoundsEqualCpuVersion) {
  check_bounds<bf16>(128, 16);
  check_bounds<f16>(64, 5);
  check_bounds<float>(7, 16);
  check_bounds<f16>(264, 64);
}

TEST_F(PagesCuda, MeansEqualCpuVersion) {
  check_means<f16>(128, 16, 16);
  check_means<bf16>(80, 32, 16);
  check_means<float>(5, 3, 2);
}

TEST_F(PagesCuda, ScoresEqualCpuVersion) {
  using Kind = PageScores::Kind;
  using Heads = PageScores::Heads;
  check_scores({4, 128, Kind::kBound, Heads::kMax, false, false, false});
  check_scores({1, 64, Kind::kBlend, Heads::kMean, false, false, true});
  check_scores({3, 80, Kind::kDot, Heads::kEach, false, false, true});
  check_scores({2, 128, Kind::kDot, Heads::kSum, true, true, false});
  check_scores({2, 7, Kind::kBound, Heads::kEach, true, true, true});
  check_scores({5, 32, Kind::kBlend, Heads::kMean, true, false, true});
  check_scores({1, 260, Kind::kDot, Heads::kMax, true, false, false});
}

}  // namespace
}  // namespace kvlab
