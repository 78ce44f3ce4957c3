#include "kernels/pack_tokens/pack_tokens.h"

#include "tests/cuda/rows_fixture.h"

namespace kvlab {
namespace {

class PackTokensCuda : public CudaTest {
 protected:
  template <class T>
  void check(bool lists) {
    RowsFixture<T> rows({.kv_heads = 2, .head_dim = 24, .page_tokens = 8, .num_words = 2}, {0, 1, 70, 8, 300, 9}, 1);
    const std::vector<std::int64_t> first{0, 0, 1, 31, 39, 339, 345};
    std::vector<std::int32_t> index{0};
    for (std::int32_t i = 0; i < 30; ++i) index.push_back(2 * i + 3);
    for (std::int32_t i = 0; i < 308; ++i) index.push_back(i < 8 ? i : i - 8);
    for (const std::int32_t i : {0, 2, 3, 5, 6, 8}) index.push_back(i);
    const std::size_t listed = index.size(), numbers = listed * 24;
    std::vector<float> k(numbers), v(numbers);
    std::vector<std::uint32_t> marks(3 * listed);
    run_cpu(PackTokens{rows.host(), first.data(), lists ? index.data() : nullptr, k.data(), v.data(), marks.data()});
    const DeviceBuffer<std::int32_t> there(index);
    const DeviceBuffer<T> packed_k(static_cast<std::int64_t>(numbers)), packed_v(static_cast<std::int64_t>(numbers));
    const DeviceBuffer<std::uint32_t> packed_marks(static_cast<std::int64_t>(marks.size()));
    PackTokens op{rows.device(), first.data(), lists ? there.data() : nullptr, packed_k.data(), packed_v.data(), packed_marks.data()};
    run_cuda(op, cuda());
    EXPECT_EQ(floats(packed_k.to_host(cuda().stream())), k);
    EXPECT_EQ(floats(packed_v.to_host(cuda().stream())), v);
    EXPECT_EQ(packed_marks.to_host(cuda().stream()), marks);
    // Back into other rows: what is not listed stays.
    RowsFixture<T> to({.kv_heads = 2, .head_dim = 24, .page_tokens = 8, .num_words = 2}, {0, 1, 70, 8, 300, 9}, 50);
    op.kv = to.device();
    op.unpacks = true;
    run_cuda(op, cuda());
    run_cpu(PackTokens{to.host(), first.data(), lists ? index.data() : nullptr, k.data(), v.data(), marks.data(), true});
    const std::vector<float> keys = to.device_keys(cuda()), values = to.device_values(cuda());
    to.for_each_token([&](std::int32_t r, std::int32_t i, std::size_t slot) {
      const auto at = static_cast<std::ptrdiff_t>(slot * 24);
      EXPECT_TRUE(std::equal(keys.begin() + at, keys.begin() + at + 24, to.k.begin() + at)) << r << " " << i;
      EXPECT_TRUE(std::equal(values.begin() + at, values.begin() + at + 24, to.v.begin() + at)) << r << " " << i;
    });
    EXPECT_EQ(to.device_words(cuda()), to.words);
  }
};

TEST_F(PackTokensCuda, EqualsCpuVersion) {
  for (const bool lists : {true, false}) {
    check<bf16>(lists);
    check<f16>(lists);
    check<float>(lists);
  }
}

}  // namespace
}  // namespace kvlab
