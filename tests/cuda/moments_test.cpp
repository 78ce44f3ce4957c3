#include "kernels/attention/query_moments/query_moments.h"
#include "kernels/attention/window_moments/window_moments.h"
#include "policies/kv/scorer/expected_attention/expected_attention.h"
#include "tests/cuda/rows_fixture.h"

namespace kvlab {
namespace {

class MomentsCuda : public CudaTest {};

// Sums of at most 512 products in fp32, then doubles.
TEST_F(MomentsCuda, QueryMoments) {
  for (const std::int32_t head_dim : {7, 80}) {
    for (const bool turns : {false, true}) {
      SCOPED_TRACE(testing::Message() << "head_dim " << head_dim << ", turns " << turns);
      constexpr std::int32_t kHeads = 2;
      const QueriesFixture queries({0, 5, 600}, {0, 40, 700}, kHeads, head_dim, 1);
      const Ints future{1, 41, 701};
      const std::int64_t lines = 3LL * kHeads * head_dim;
      const std::vector<float> frequencies = random_elements<float>(3 * (head_dim / 2), 7);
      Twice<float> mean(lines), covariance(lines * head_dim);
      run_both([&](bool gpu) {
        QueryMoments op;
        op.num_sequences = 3, op.q_heads = kHeads, op.head_dim = head_dim, op.skip_tokens = 4, op.unbiased = turns;
        op.frequencies = turns ? frequencies.data() : nullptr, op.magnitude = 1.25F;
        op.future_begin = future.data(), op.num_future = 64;
        op.queries = queries.at(gpu), op.mean = mean.at(gpu), op.covariance = covariance.at(gpu);
        return op;
      });
      EXPECT_TRUE(all_near(mean.device(cuda()), mean.host(), 1e-6, 1e-5));
      EXPECT_TRUE(all_near(covariance.device(cuda()), covariance.host(), 1e-5, 1e-5));
    }
  }
}

// Logits up to about 30, of sums in fp32 in another order: their errors are the relative errors of probabilities.
TEST_F(MomentsCuda, ExpectedAttention) {
  for (const std::int32_t head_dim : {7, 80}) {
    RowsFixture<bf16> rows({.kv_heads = 2, .group = 2, .head_dim = head_dim, .page_tokens = 16}, {0, 3, 64, 150}, 2);
    const auto d = static_cast<std::size_t>(head_dim);
    Twice<float> mean = normals(static_cast<std::int64_t>(8 * d), 3);
    std::vector<float> x = random_elements<float>(static_cast<std::int64_t>(8 * d * d), 4, 0.2F);
    for (std::size_t h = 0; h < 8; ++h)
      for (std::size_t i = 0; i < d; ++i) x[(h * d + i) * d + i] = 3.0F;
    Twice<float> covariance(x);
    for (const bool squares : {false, true})
      for (const std::int32_t sinks : {0, 4, 1000}) {
        const auto scores = both<float>(rows.first.back(), [&](bool gpu, float* out) {
          return ExpectedAttention{rows.at(gpu), mean.at(gpu), squares, covariance.at(gpu), sinks, out};
        });
        EXPECT_TRUE(all_near(scores, 1e-6, 1e-4)) << head_dim << squares << sinks;
      }
  }
}

// Probabilities of fp32 sums in another order; variances are differences of such.
TEST_F(MomentsCuda, WindowMoments) {
  for (const std::int32_t head_dim : {20, 64}) {
    RowsFixture<f16> rows({.kv_heads = 2, .group = 2, .head_dim = head_dim, .page_tokens = 16}, {40, 3, 64, 150, 10, 0}, 5);
    const QueriesFixture queries({1, 6, 0}, {50, 170, 20}, 4, head_dim, 6);
    Twice<float> scores(rows.first.back()), entropy(3), variance(3);
    run_both([&](bool gpu) {
      WindowMoments op;
      op.wants_scores = op.wants_spread = true, op.kv = rows.at(gpu), op.queries = queries.at(gpu);
      op.scores = scores.at(gpu), op.entropy = entropy.at(gpu), op.variance = variance.at(gpu);
      return op;
    });
    EXPECT_TRUE(all_near(scores.device(cuda()), scores.host(), 1e-6, 1e-4));
    EXPECT_TRUE(all_near(entropy.device(cuda()), entropy.host(), 1e-4, 1e-4));
    EXPECT_TRUE(all_near(variance.device(cuda()), variance.host(), 1e-6, 1e-4));
  }
}

class WindowMomentsCuda : public CudaTest {
 protected:
  template <class T>
  void check(const RowsShape& shape, const Ints& lengths, const Ints& counts, bool scores, bool spread) {
    SCOPED_TRACE(testing::Message() << name_of(kElementType<T>) << ", group " << shape.group << " of " << shape.head_dim);
    RowsFixture<T> rows(shape, lengths, 1);
    Ints last;
    for (std::size_t s = 0; s < counts.size(); ++s) last.push_back(lengths[s * static_cast<std::size_t>(shape.kv_heads)] + 3);
    const QueriesFixture queries(counts, last, shape.kv_heads * shape.group, shape.head_dim, 2);
    const std::int64_t n = rows.first.back(), s = std::ssize(counts);
    const auto moments = both(std::vector<float>(static_cast<std::size_t>(n + 2 * s), -1.0F), [&](bool gpu, float* out) {
      WindowMoments a;
      a.wants_scores = scores, a.wants_spread = spread, a.gamma = 50, a.kv = rows.at(gpu), a.queries = queries.at(gpu);
      a.scores = out, a.entropy = out + n, a.variance = out + n + s;
      return a;
    });
    EXPECT_TRUE(all_near(moments, 1e-6, 2e-4));  // probabilities in fp32, gamma times the difference of sums of their squares
  }
};

TEST_F(WindowMomentsCuda, EqualsCpuVersion) {
  check<float>({2, 2, 64}, {40, 7, 0, 33}, {8, 3}, true, true);
  check<bf16>({1, 3, 128, 32}, {50}, {5}, true, true);
  check<f16>({1, 4, 33, 5}, {21, 60}, {1, 0}, true, true);
  check<f16>({1, 1, 64}, {30}, {4}, true, false);
  check<f16>({1, 1, 64}, {30}, {4}, false, true);
  check<f16>({1, 2, 64}, {0}, {4}, true, true);
}

}  // namespace
}  // namespace kvlab
