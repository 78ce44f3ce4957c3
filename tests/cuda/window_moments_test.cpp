#include "kernels/attention/window_moments/window_moments.h"

#include "tests/cuda/rows_fixture.h"

namespace kvlab {
namespace {

class WindowMomentsCuda : public CudaTest {
 protected:
  template <class T>
  void check(const RowsShape& shape, const std::vector<std::int32_t>& lengths, const std::vector<std::int32_t>& counts, bool scores,
             bool spread) {
    SCOPED_TRACE(testing::Message() << name_of(kElementType<T>) << ", group " << shape.group << " of " << shape.head_dim);
    RowsFixture<T> rows(shape, lengths, 1);
    std::vector<std::int32_t> last;
    for (std::size_t s = 0; s < counts.size(); ++s) last.push_back(lengths[s * static_cast<std::size_t>(shape.kv_heads)] + 3);
    const QueriesFixture queries(counts, last, shape.kv_heads * shape.group, shape.head_dim, 2);
    const std::int64_t n = rows.first.back(), s = static_cast<std::int64_t>(counts.size());
    WindowMoments a;
    a.wants_scores = scores, a.wants_spread = spread, a.gamma = 50;
    std::vector<float> expected(static_cast<std::size_t>(n + 2 * s), -1.0F);
    a.kv = rows.host(), a.queries = queries.host();
    a.scores = expected.data(), a.entropy = expected.data() + n, a.variance = expected.data() + n + s;
    run_cpu(a);
    a.kv = rows.device(), a.queries = queries.device();
    const auto got = same_in_every_order([&] {
      const DeviceBuffer<float> out(std::vector<float>(expected.size(), -1.0F));
      a.scores = out.data(), a.entropy = out.data() + n, a.variance = out.data() + n + s;
      run_cuda(a, cuda());
      return out.to_host(cuda().stream());
    });
    EXPECT_TRUE(all_near(got, expected, 1e-6, 2e-4));  // probabilities in fp32, gamma times the difference of sums of their squares
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
