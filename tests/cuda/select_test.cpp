#include <limits>
#include <numeric>

#include "kernels/allocate/count_scores_op.h"
#include "kernels/score/mark_top_op.h"
#include "kernels/select/top_k/top_k.h"
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
}

TEST_F(SelectCuda, TopKOfLongRows) {
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
      Ints counts[2] = {Ints(6, -1), Ints(6, -1)};
      run_both([&](bool gpu) { return CountScores{6, first.data(), x.at(gpu), kind, limit, counts[gpu].data()}; });
      EXPECT_EQ(counts[1], counts[0]) << limit;
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

}  // namespace
}  // namespace kvlab
