#include "kernels/score/anchor_cosine/anchor_cosine.h"
#include "kernels/score/token_norms/token_norms.h"
#include "tests/cuda/rows_fixture.h"

namespace kvlab {
namespace {

// One number per token from its key or value. Sums of at most 512 products in fp32, in another order than the CPU's.
class TokenVectorsCuda : public CudaTest {
 protected:
  template <class T, class Run>
  void check(RowsFixture<T>& rows, double tolerance, Run&& run) {
    std::vector<float> expected(static_cast<std::size_t>(rows.first.back()));
    run([](const auto& op) { run_cpu(op); }, rows.host(), expected.data());
    const auto got = same_in_every_order([&] {
      const DeviceBuffer<float> out(rows.first.back());
      run([&](const auto& op) { run_cuda(op, cuda()); }, rows.device(), out.data());
      return out.to_host(cuda().stream());
    });
    EXPECT_TRUE(all_near(got, expected, tolerance, tolerance));
  }

  template <class T>
  void check_all(std::int32_t head_dim, std::int32_t page_tokens) {
    SCOPED_TRACE(testing::Message() << "head_dim " << head_dim);
    RowsFixture<T> rows({.kv_heads = 2, .head_dim = head_dim, .page_tokens = page_tokens}, {0, 1, 37, 16, 140, 260}, 1, 2.0F);
    const auto norms = [&](TokenNorms::Of of, TokenNorms::Kind kind) {
      check(rows, 1e-5, [&](auto&& op_on, const KvRows& kv, float* out) { op_on(TokenNorms{kv, of, kind, out}); });
    };
    norms(TokenNorms::Of::kKey, TokenNorms::Kind::kL2);
    norms(TokenNorms::Of::kValue, head_dim % 2 == 0 ? TokenNorms::Kind::kL1 : TokenNorms::Kind::kL2Squared);
    const std::vector<float> vectors = random_elements<float>(6LL * head_dim, 2);
    const DeviceBuffer<float> device_vectors(vectors);
    check(rows, 1e-4, [&](auto&& op_on, const KvRows& kv, float* out) {
      op_on(TokenNorms{kv, TokenNorms::Of::kKey, TokenNorms::Kind::kDot, out,
                       kv.k == rows.k.data() ? vectors.data() : device_vectors.data(), 0.5F});
    });
    const std::vector<std::int32_t> begin{0, 0, 5, 3, 0, 200}, end{0, 1, 9, 3, 140, 260};
    for (const bool cosine : {false, true})
      check(rows, 1e-5, [&](auto&& op_on, const KvRows& kv, float* out) {
        op_on(AnchorCosine{kv, begin.data(), end.data(), cosine, -2.0F, out});
      });
  }
};

TEST_F(TokenVectorsCuda, EqualCpuVersions) {
  for (const std::int32_t head_dim : {7, 80}) check_all<bf16>(head_dim, 16);
  for (const std::int32_t head_dim : {128, 512}) check_all<f16>(head_dim, 7);
  for (const std::int32_t head_dim : {64, 256}) check_all<float>(head_dim, 16);
}

TEST_F(TokenVectorsCuda, WiderHeadsAreRefused) {
  RowsFixture<f16> rows({.head_dim = 520}, {3}, 3);
  const DeviceBuffer<float> out(3);
  EXPECT_THROW(run_cuda(TokenNorms{rows.device(), TokenNorms::Of::kKey, TokenNorms::Kind::kL2, out.data()}, cuda()), CudaError);
}

}  // namespace
}  // namespace kvlab
