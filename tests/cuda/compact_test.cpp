#include "kernels/storage/compact/compact.h"

#include <algorithm>

#include "tests/cuda/rows_fixture.h"

namespace kvlab {
namespace {

// Each token of a row is kept with a chance of 1 in `every`; every = 0: none, 1: all.
struct KeptLists {
  KeptLists(const std::vector<std::int32_t>& lengths, unsigned every, std::uint64_t seed) {
    std::mt19937_64 random(seed);
    for (const std::int32_t n : lengths) {
      for (std::int32_t i = 0; i < n; ++i)
        if (every > 0 && random() % every == 0) index.push_back(i);
      first.push_back(static_cast<std::int64_t>(index.size()));
      longest = std::max(longest, static_cast<std::int32_t>(first.back() - first[first.size() - 2]));
    }
  }
  std::vector<std::int64_t> first{0};
  std::vector<std::int32_t> index;
  std::int32_t longest = 0;
};

class CompactCuda : public CudaTest {
 protected:
  template <class T>
  void check(std::int32_t head_dim, const std::vector<std::int32_t>& lengths, unsigned every, std::uint64_t seed) {
    SCOPED_TRACE(testing::Message() << name_of(kElementType<T>) << " " << head_dim << " every " << every << " seed " << seed);
    const KeptLists kept(lengths, every, seed);
    const DeviceBuffer<std::int32_t> index(kept.index);
    RowsFixture<T> rows({1, 1, head_dim, 16, 2}, lengths, seed);
    std::uint32_t next = 1;
    rows.for_each_token([&](std::int32_t, std::int32_t, std::size_t slot) {
      for (std::size_t w = 0; w < 2; ++w) rows.words[w * rows.position.size() + slot] = next++;
    });
    const auto all = same_in_every_order([&] {
      rows.upload();
      run_cuda(CompactRows{rows.device(), kept.first.data(), index.data()}, cuda());
      return rows.device_bits(cuda());
    });
    run_cpu(CompactRows{rows.host(), kept.first.data(), kept.index.data()});
    EXPECT_EQ(all, rows.bits());
  }
};

TEST_F(CompactCuda, MovesKeptTokensToTheFront) {
  for (const unsigned every : {0U, 1U, 2U, 5U})
    for (const std::int32_t head_dim : {7, 8, 64, 128}) {
      check<bf16>(head_dim, {33, 0, 1, 17, 150}, every, every);
      check<float>(head_dim, {16, 64}, every, every + 10);
    }
  check<f16>(128, {300}, 2, 21);                              // several chunks
  check<bf16>(8, {2500, 1100}, 2, 22);                        // of many tokens each
  check<bf16>(64, std::vector<std::int32_t>(40, 20), 2, 23);  // rows enough that vectors stay whole
}

TEST_F(CompactCuda, GathersIntoOtherPages) {
  for (const std::int32_t head_dim : {7, 8, 64, 128, 576}) {
    const std::vector<std::int32_t> lengths{33, 0, 1, 200};
    RowsFixture<bf16> from({1, 1, head_dim, 16, 1}, lengths, 31), to({1, 1, head_dim, 8, 1}, lengths, 32);
    const KeptLists kept(lengths, 3, 33);
    const DeviceBuffer<std::int32_t> index(kept.index);
    const DeviceBuffer<std::int64_t> first(kept.first);
    const DeviceRows source = on_device(from.device(), cuda()), target = on_device(to.device(), cuda());
    const DeviceGather a{source, target, first.data(), index.data(), kept.first.back(), kept.longest, ElementType::kBf16};
    run_cuda(a, cuda());
    const KvRows in = from.host(), out = to.host();
    for (std::int32_t r = 0; r < in.num_rows; ++r)
      for (std::int64_t i = kept.first[static_cast<std::size_t>(r)]; i < kept.first[static_cast<std::size_t>(r) + 1]; ++i) {
        const auto t = static_cast<std::int32_t>(i - kept.first[static_cast<std::size_t>(r)]);
        const std::int32_t token = kept.index[static_cast<std::size_t>(i)];
        std::copy_n(in.key(r, token), head_dim, out.key(r, t));
        std::copy_n(in.value(r, token), head_dim, out.value(r, t));
        out.word(0, r, t) = in.word(0, r, token);
        out.position[out.slot(r, t)] = in.position[in.slot(r, token)];
      }
    EXPECT_EQ(to.device_bits(cuda()), to.bits()) << head_dim;  // slots that nothing was copied to are as before
  }
}

TEST_F(CompactCuda, CountsTheBytesOfTheMove) {
  DeviceGather a;
  a.from.head_dim = 128, a.kept = 10;
  EXPECT_EQ(bytes(shape(a)), 10 * (4 * 128 * 2 + 4));
}

}  // namespace
}  // namespace kvlab
