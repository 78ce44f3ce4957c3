#include "kernels/merge/nearest_kept/nearest_kept.h"

#include "tests/cuda/parts_fixture.h"

namespace kvlab {
namespace {

class NearestKeptCuda : public CudaTest {
 protected:
  // Cosines of at most 256 products in fp32 in another order than the CPU's; the nearest of random keys is nearer than the others by more.
  template <class T>
  void check(std::int32_t head_dim, const Ints& len, const Ints& kept) {
    SCOPED_TRACE(testing::Message() << "head_dim " << head_dim);
    PartsFixture<T> parts({.kv_heads = 1, .head_dim = head_dim, .page_tokens = 16}, len, kept, 1);
    RowsFixture<T>& rows = parts.rows;
    const auto d = static_cast<std::size_t>(head_dim);
    const auto key = [&](std::int32_t row, std::int32_t token) {
      return rows.k.data() + static_cast<std::size_t>(rows.host().slot(row, token)) * d;
    };
    const auto last = static_cast<std::int32_t>(len.size()) - 1;
    const std::int32_t* const of_last = parts.dropped.data() + parts.dropped_first[static_cast<std::size_t>(last)];
    std::fill_n(key(last, of_last[0]), d, 0.0F);  // no direction: cosine 0 with all
    std::fill_n(key(last, parts.kept[static_cast<std::size_t>(parts.kept_first[static_cast<std::size_t>(last)])]), d, 0.0F);
    const std::int32_t* const stay = parts.kept.data() + parts.kept_first[static_cast<std::size_t>(last)];
    std::copy_n(key(last, stay[2]), d, key(last, stay[5]));  // equal keys: the lower place
    std::copy_n(key(last, stay[2]), d, key(last, of_last[1]));
    rows.upload();
    Ints expected(parts.dropped.size(), -7);
    std::vector<float> expected_similarity(parts.dropped.size());
    run_cpu(NearestKept{parts.host(), expected.data(), expected_similarity.data()});
    const auto got = same_in_every_order([&] {
      const DeviceBuffer<std::int32_t> target(parts.total_dropped());
      const DeviceBuffer<float> similarity(parts.total_dropped());
      run_cuda(NearestKept{parts.device(), target.data(), similarity.data()}, cuda());
      EXPECT_TRUE(all_near(similarity.to_host(cuda().stream()), expected_similarity, 2e-6, 0));
      return target.to_host(cuda().stream());
    });
    EXPECT_EQ(got, expected);
  }
};

TEST_F(NearestKeptCuda, EqualsCpuVersion) {
  check<f16>(64, {0, 1, 1, 30, 200, 150}, {0, 1, 0, 0, 65, 64});  // 64 dropped keys to a warp row, 64 kept ones to a tile
  check<bf16>(128, {140, 100}, {9, 73});
  check<f16>(256, {90, 100}, {3, 30});
  check<f16>(40, {90, 100}, {3, 30});
  check<float>(64, {90, 100}, {3, 30});
}

}  // namespace
}  // namespace kvlab
