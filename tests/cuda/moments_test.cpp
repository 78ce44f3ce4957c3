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
      std::vector<float> mean(static_cast<std::size_t>(lines)), covariance(static_cast<std::size_t>(lines * head_dim));
      QueryMoments op;
      op.num_sequences = 3, op.q_heads = kHeads, op.head_dim = head_dim, op.skip_tokens = 4, op.unbiased = turns;
      const std::vector<float> frequencies = random_elements<float>(3 * (head_dim / 2), 7);
      op.frequencies = turns ? frequencies.data() : nullptr, op.magnitude = 1.25F;
      op.future_begin = future.data(), op.num_future = 64;
      op.queries = queries.host(), op.mean = mean.data(), op.covariance = covariance.data();
      run_cpu(op);
      const DeviceBuffer<float> device_mean(lines), device_covariance(lines * head_dim);
      op.queries = queries.device(), op.mean = device_mean.data(), op.covariance = device_covariance.data();
      run_cuda(op, cuda());
      EXPECT_TRUE(all_near(device_mean.to_host(cuda().stream()), mean, 1e-6, 1e-5));
      EXPECT_TRUE(all_near(device_covariance.to_host(cuda().stream()), covariance, 1e-5, 1e-5));
    }
  }
}

// Logits up to about 30, of sums in fp32 in another order: their errors are the relative errors of probabilities.
TEST_F(MomentsCuda, ExpectedAttention) {
  for (const std::int32_t head_dim : {7, 80}) {
    RowsFixture<bf16> rows({.kv_heads = 2, .group = 2, .head_dim = head_dim, .page_tokens = 16}, {0, 3, 64, 150}, 2);
    const auto d = static_cast<std::size_t>(head_dim);
    const std::vector<float> mean = random_elements<float>(static_cast<std::int64_t>(8 * d), 3);
    std::vector<float> covariance = random_elements<float>(static_cast<std::int64_t>(8 * d * d), 4, 0.2F);
    for (std::size_t h = 0; h < 8; ++h)
      for (std::size_t i = 0; i < d; ++i) covariance[(h * d + i) * d + i] = 3.0F;
    const DeviceBuffer<float> device_mean(mean), device_covariance(covariance);
    for (const bool squares : {false, true}) {
      for (const std::int32_t sinks : {0, 4, 1000}) {
        std::vector<float> expected(static_cast<std::size_t>(rows.first.back()));
        run_cpu(ExpectedAttention{rows.host(), mean.data(), squares, covariance.data(), sinks, expected.data()});
        const auto got = same_in_every_order([&] {
          const DeviceBuffer<float> out(rows.first.back());
          run_cuda(ExpectedAttention{rows.device(), device_mean.data(), squares, device_covariance.data(), sinks, out.data()}, cuda());
          return out.to_host(cuda().stream());
        });
        EXPECT_TRUE(all_near(got, expected, 1e-6, 1e-4)) << head_dim << squares << sinks;
      }
    }
  }
}

// Probabilities of fp32 sums in another order; variances are differences of such.
TEST_F(MomentsCuda, WindowMoments) {
  for (const std::int32_t head_dim : {20, 64}) {
    RowsFixture<f16> rows({.kv_heads = 2, .group = 2, .head_dim = head_dim, .page_tokens = 16}, {40, 3, 64, 150, 10, 0}, 5);
    const QueriesFixture queries({1, 6, 0}, {50, 170, 20}, 4, head_dim, 6);
    WindowMoments op;
    op.wants_scores = op.wants_spread = true;
    std::vector<float> scores(static_cast<std::size_t>(rows.first.back())), entropy(3), variance(3);
    op.kv = rows.host(), op.queries = queries.host(), op.scores = scores.data(), op.entropy = entropy.data(), op.variance = variance.data();
    run_cpu(op);
    const DeviceBuffer<float> device_scores(rows.first.back()), device_entropy(3), device_variance(3);
    op.kv = rows.device(), op.queries = queries.device(), op.scores = device_scores.data();
    op.entropy = device_entropy.data(), op.variance = device_variance.data();
    run_cuda(op, cuda());
    EXPECT_TRUE(all_near(device_scores.to_host(cuda().stream()), scores, 1e-6, 1e-4));
    EXPECT_TRUE(all_near(device_entropy.to_host(cuda().stream()), entropy, 1e-4, 1e-4));
    EXPECT_TRUE(all_near(device_variance.to_host(cuda().stream()), variance, 1e-6, 1e-4));
  }
}

}  // namespace
}  // namespace kvlab
