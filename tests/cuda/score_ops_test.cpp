#include "kernels/score/pool1d_op.h"
#include "kernels/score/reduce_heads_op.h"
#include "kernels/score/score_map_op.h"
#include "tests/cuda/rows_fixture.h"

namespace kvlab {
namespace {

// Operations that change scores of ragged rows in place: op(gpu, scores).
class ScoreOpsCuda : public CudaTest {
 protected:
  template <class Op>
  void check(const std::vector<float>& scores, double tolerance, const Op& op) {
    const auto [got, expected] = both(scores, op);
    for (std::size_t i = 0; i < got.size(); ++i)
      ASSERT_TRUE(got[i] == expected[i] || (std::isnan(got[i]) && std::isnan(expected[i])) ||
                  std::abs(got[i] - expected[i]) <= tolerance * (1 + std::abs(expected[i])))
          << "element " << i << " is " << got[i] << ", expected " << expected[i];
  }
};

const Ints kLen{0, 1, 2, 33, 1023, 1025, 300, 2000};  // chunks of 1,024
const auto kRows = static_cast<std::int32_t>(kLen.size());

TEST_F(ScoreOpsCuda, ScoreMapFills) {
  const Longs first = prefix_sums(kLen);
  const Ints begin{0, 0, 1, 5, 0, 20, 300, 7}, end{0, 1, 1, 33, 1023, 1025, 300, 1999};
  for (const bool outside : {false, true})
    check(random_elements<float>(first.back(), 3), 0,
          [&](bool, float* x) { return ScoreMap::fill(kRows, first.data(), begin.data(), end.data(), 0.3F, 1e-3F, x, outside); });
}

TEST_F(ScoreOpsCuda, ScoreMapGathers) {
  const Longs first = prefix_sums(kLen);
  Ints kept, listed;
  for (const std::int32_t n : kLen) {
    const std::size_t before = listed.size();
    for (std::int32_t i = n / 5; i < n; i += 1 + i % 3) listed.push_back(i);
    kept.push_back(static_cast<std::int32_t>(listed.size() - before));
  }
  const Longs index_first = prefix_sums(kept);
  Twice<float> scores = normals(first.back(), 4);
  Twice<std::int32_t> index(listed);
  EXPECT_TRUE(equal(both<float>(index_first.back(), [&](bool gpu, float* out) {
    ScoreMap gather{kRows, index_first.data(), ScoreMap::Kind::kGather, scores.at(gpu)};
    gather.start = first.data(), gather.index = index.at(gpu), gather.out = out;
    return gather;
  })));
}

TEST_F(ScoreOpsCuda, BlockMaxima) {
  const Longs in_first = prefix_sums(kLen);
  Twice<float> in = normals(in_first.back(), 5);
  Ints blocks;
  for (const std::int32_t n : kLen) blocks.push_back((n + 4) / 4 + 1);  // the last ones have nothing to look at
  const Longs first = prefix_sums(blocks);
  EXPECT_TRUE(equal(both<float>(first.back(), [&](bool gpu, float* out) {
    return Pool1d{kRows, first.data(), nullptr, nullptr, out, 6, Pool1d::Kind::kBlockMax, false, 1, 4, 1, in_first.data(), in.at(gpu)};
  })));
}

// Heads that hold the same tokens, and heads that do not. The sums are in the CPU's order.
TEST_F(ScoreOpsCuda, ReduceHeads) {
  RowsFixture<f16> rows({.kv_heads = 4, .head_dim = 8, .page_tokens = 16}, {700, 650, 0, 1030, 90, 90, 90, 90}, 9);
  const KvRows kv = rows.host();
  for (std::int32_t i = 0; i < 90; ++i)
    for (std::int32_t r = 5; r < 8; ++r)
      rows.position[static_cast<std::size_t>(kv.slot(r, i))] = rows.position[static_cast<std::size_t>(kv.slot(4, i))];
  rows.upload();
  std::vector<float> scores = random_elements<float>(rows.first.back(), 10);
  for (float& x : scores) x = std::abs(x);
  for (const auto kind : {ReduceHeads::Kind::kSum, ReduceHeads::Kind::kMean, ReduceHeads::Kind::kRootOfSum})
    for (const bool by_position : {true, false})
      check(scores, 0, [&](bool gpu, float* x) { return ReduceHeads{rows.at(gpu), kind, x, by_position}; });
}

}  // namespace
}  // namespace kvlab
