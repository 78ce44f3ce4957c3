#include "kernels/select/cluster/cluster.h"

#include "kernels/select/unit_lists_op.h"
#include "tests/cuda/rows_fixture.h"

namespace kvlab {
namespace {

class ClusterCuda : public CudaTest {};

// Keys around a few directions, so that no key is between two centres: assignments are the same, means differ by their order of
// summation.
TEST_F(ClusterCuda, ClusterKeys) {
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
  run_cpu(ClusterKeys{rows.host(), tokens.data(), clusters.data(), 4, cluster_of.host(), centroids.host(), sizes.host()});
  for (const auto order : {emulated::Order::kForward, emulated::Order::kShuffled}) {
    emulated::set_order(order);
    run_cuda(ClusterKeys{rows.device(), tokens.data(), clusters.data(), 4, cluster_of.device(), centroids.device(), sizes.device()},
             cuda());
    EXPECT_EQ(cluster_of.device_contents(cuda()), cluster_of.contents());
    EXPECT_EQ(sizes.device_contents(cuda()), sizes.contents());
    EXPECT_TRUE(all_near(centroids.device_contents(cuda()), centroids.contents(), 1e-6, 1e-5));
  }
  emulated::set_order(emulated::Order::kForward);
}

// Weights are probabilities of fp32 sums in another order: the threshold is one of them, and the same one.
TEST_F(ClusterCuda, ClusterThreshold) {
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
    EXPECT_TRUE(all_near(threshold.device_contents(cuda()), threshold.contents(), 0, 1e-5)) << frac;
  }
}

TEST_F(ClusterCuda, TokensOfClusters) {
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

}  // namespace
}  // namespace kvlab
