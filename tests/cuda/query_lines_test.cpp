#include "kernels/attention/pass_attention/pass_attention.h"
#include "kernels/score/projected_norms/projected_norms.h"
#include "policies/kv/scorer/chosen_heads/chosen_heads.h"
#include "policies/kv/scorer/chunk_attention/chunk_attention.h"
#include "tests/cuda/rows_fixture.h"

namespace kvlab {
namespace {

// Probabilities of logits that are sums of 20 products in fp32, in another order than the CPU's.
class QueryLinesCuda : public CudaTest {
 protected:
  template <class T, class Run>
  void check(RowsFixture<T>& rows, Run&& run) {
    std::vector<float> expected(static_cast<std::size_t>(rows.first.back()), -1.0F);
    run([](const auto& op) { run_cpu(op); }, false, expected.data());
    const auto got = same_in_every_order([&] {
      const DeviceBuffer<float> out(rows.first.back());
      run([&](const auto& op) { run_cuda(op, cuda()); }, true, out.data());
      return out.to_host(cuda().stream());
    });
    EXPECT_TRUE(all_near(got, expected, 1e-5, 1e-4));
  }
};

TEST_F(QueryLinesCuda, ChosenHeadsEqualCpuVersion) {
  RowsFixture<f16> rows({.kv_heads = 2, .group = 2, .head_dim = 20, .page_tokens = 8}, {0, 0, 70, 70, 33, 33}, 1);
  const QueriesFixture queries({1, 5, 3}, {0, 60, 500}, 4, 20, 2);
  const Ints heads{3, 0, 2};
  for (const bool finds : {false, true})
    check(rows, [&](auto&& op_on, bool gpu, float* out) {
      op_on(ChosenHeads{gpu ? rows.device() : rows.host(), gpu ? queries.device() : queries.host(), finds ? nullptr : heads.data(), 3,
                        finds, 4, 8, out});
    });
}

TEST_F(QueryLinesCuda, ChunkAttentionEqualsCpuVersion) {
  RowsFixture<f16> rows({.kv_heads = 2, .group = 2, .head_dim = 20, .page_tokens = 8, .num_words = 2}, {5, 5, 70, 70, 33, 40}, 5);
  const QueriesFixture queries({0, 50, 1}, {5, 60, 500}, 4, 20, 6);
  for (const bool flag : {false, true}) {
    run_cpu(ChunkAttention{rows.host(), queries.host(), 16, flag, flag, 1});
    run_cuda(ChunkAttention{rows.device(), queries.device(), 16, flag, flag, 1}, cuda());
    const std::vector<std::uint32_t> got = rows.device_words(cuda());
    const std::size_t slots = rows.position.size();
    rows.for_each_token([&](std::int32_t r, std::int32_t i, std::size_t slot) {
      EXPECT_NEAR(std::bit_cast<float>(got[slots + slot]), std::bit_cast<float>(rows.words[slots + slot]), 1e-4) << r << " " << i;
    });
  }
}

TEST_F(QueryLinesCuda, ProjectedNormsEqualCpuVersion) {
  RowsFixture<f16> rows({.kv_heads = 2, .group = 2, .head_dim = 20, .page_tokens = 8}, {0, 1, 9, 30}, 7);
  const std::vector<float> w_o = random_elements<float>(300 * 80, 8);
  const DeviceBuffer<float> device_w_o(w_o);
  for (const auto kind : {ProjectedNorms::Kind::kL1, ProjectedNorms::Kind::kL2})
    check(rows, [&](auto&& op_on, bool gpu, float* out) {
      op_on(ProjectedNorms{gpu ? rows.device() : rows.host(), gpu ? device_w_o.data() : w_o.data(), 300, kind, out});
    });
}

TEST_F(QueryLinesCuda, PassAttentionEqualsCpuVersion) {
  const std::int32_t hidden_dim = 30;
  RowsFixture<f16> rows({.kv_heads = 2, .group = 2, .head_dim = 20, .page_tokens = 8}, {0, 3, 60, 45}, 9);
  const QueriesFixture queries({2, 5, 7}, {800, 900, 901}, 4, 20, 10);
  const std::vector<float> keys = random_elements<float>(7 * 2 * 20, 11), hidden = random_elements<float>(7 * hidden_dim, 12, 5.0F);
  const std::vector<float> w_o = random_elements<float>(hidden_dim * 80, 13), gradient{3, 0.5F, 2, 7, 1, 0.25F, 4};
  const DeviceBuffer<float> device_keys(keys), device_hidden(hidden), device_w_o(w_o), device_gradient(gradient);
  using Norms = PassAttention::Norms;
  for (const Norms norms : {Norms::kNone, Norms::kHidden, Norms::kGradient})
    check(rows, [&](auto&& op_on, bool gpu, float* out) {
      const Queries* q = gpu ? queries.device() : queries.host();
      const bool sums = norms == Norms::kHidden;
      const float *k = gpu ? device_keys.data() : keys.data(), *h = gpu ? device_hidden.data() : hidden.data();
      const float* g = gpu ? device_gradient.data() : gradient.data();
      const std::vector<PassQueries> one{{q[0], k, 0, 9, h, g}}, other{{q[1], k, 0, 40, h, g}, {q[2], k, 30, 70, h, g}};
      const std::vector<std::span<const PassQueries>> pass{one, other};
      op_on(PassAttention{gpu ? rows.device() : rows.host(), pass, 4, sums ? PassAttention::Reduce::kSum : PassAttention::Reduce::kMax,
                          sums ? PassAttention::Group::kMean : PassAttention::Group::kMax, norms, gpu ? device_w_o.data() : w_o.data(),
                          hidden_dim, out});
    });
}

}  // namespace
}  // namespace kvlab
