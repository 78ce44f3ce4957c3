#include <algorithm>
#include <limits>
#include <random>

#include "kernels/storage/evict_rows_op.h"
#include "tests/cuda/rows_fixture.h"

namespace kvlab {
namespace {

class EvictCuda : public CudaTest {
 protected:
  static std::vector<std::uint32_t> with(std::vector<std::uint32_t> bits, const std::vector<std::int32_t>& dropped) {
    bits.insert(bits.end(), dropped.begin(), dropped.end());
    return bits;
  }

  // Of each row up to `most` tokens go. Scores have many equal ones; the places of some tokens are exchanged.
  template <class T>
  void check(std::int32_t head_dim, const std::vector<std::int32_t>& lengths, std::int32_t most, EvictRows::Choice choice,
             std::uint64_t seed) {
    SCOPED_TRACE(testing::Message() << name_of(kElementType<T>) << " " << head_dim << " most " << most << " seed " << seed);
    std::mt19937_64 random(seed);
    RowsFixture<T> rows({1, 1, head_dim, 16, 2}, lengths, seed);
    std::uint32_t next = 1;
    rows.for_each_token([&](std::int32_t, std::int32_t, std::size_t slot) {
      for (std::size_t w = 0; w < 2; ++w) rows.words[w * rows.position.size() + slot] = next++;
    });
    std::vector<std::int64_t> first{0};
    for (const std::int32_t n : lengths)
      first.push_back(first.back() + std::min<std::int32_t>(n, static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(most + 1))));
    std::vector<float> scores;
    std::vector<std::int32_t> from, guess, listed;
    const KvRows kv = rows.host();
    for (std::int32_t r = 0; r < kv.num_rows; ++r) {
      const std::int32_t n = kv.len[r];
      const auto position = [&](std::int32_t i) -> std::int32_t& { return rows.position[static_cast<std::size_t>(kv.slot(r, i))]; };
      for (std::int32_t i = 0; i < n; ++i) {
        scores.push_back(random() % 9 == 0 ? std::numeric_limits<float>::infinity() : static_cast<float>(random() % 5));
        if (choice == EvictRows::Choice::kPositions) position(i) = 10 + (i + 3) % n;
      }
      for (std::int32_t i = 0; i < n; i += 5) std::swap(position(i), position(n - 1));
      if (n > 4) scores[scores.size() - 3] = std::numeric_limits<float>::quiet_NaN();
      from.push_back(10), guess.push_back(random() % 3 == 0 ? n - 3 : static_cast<std::int32_t>(random() % 4));
      std::vector<std::int32_t> all(static_cast<std::size_t>(n));
      std::iota(all.begin(), all.end(), 0);
      std::shuffle(all.begin(), all.end(), random);
      const auto d = static_cast<std::ptrdiff_t>(first[static_cast<std::size_t>(r) + 1] - first[static_cast<std::size_t>(r)]);
      std::sort(all.begin(), all.begin() + d);
      listed.insert(listed.end(), all.begin(), all.begin() + d);
    }
    const DeviceBuffer<float> device_scores(scores);
    DeviceBuffer<std::int32_t> dropped(listed);
    EvictRows op{rows.device(), first.data(), dropped.data(), choice, device_scores.data(), from.data(), guess.data()};
    const auto all = same_in_every_order([&] {
      rows.upload();
      op.kv = rows.device();
      run_cuda(op, cuda());
      return with(rows.device_bits(cuda()), dropped.to_host(cuda().stream()));
    });
    op.kv = rows.host(), op.dropped = listed.data(), op.scores = scores.data();
    run_cpu(op);
    EXPECT_EQ(all, with(rows.bits(), listed));
  }
};

TEST_F(EvictCuda, IsTheCpusResult) {
  std::uint64_t seed = 1;
  for (const auto choice : {EvictRows::Choice::kLowest, EvictRows::Choice::kPositions, EvictRows::Choice::kListed})
    for (const std::int32_t most : {1, 5, EvictRows::kMost})
      for (const std::int32_t head_dim : {7, 8, 128}) {
        check<bf16>(head_dim, {33, 0, 1, 17, 600}, most, choice, ++seed);
        check<float>(head_dim, {40, 64}, most, choice, ++seed);
      }
}

}  // namespace
}  // namespace kvlab
