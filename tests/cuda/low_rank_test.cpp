#include "kernels/storage/low_rank/low_rank.h"

#include "tests/cuda/listed_fixture.h"

namespace kvlab {
namespace {

// left * right is compared, not the factors; both are rounded to fp16, so 2^-10 of the vectors' size per factor, and the sums of the
// iteration are in fp32.
class LowRankCuda : public CudaTest {
 protected:
  template <class T>
  void check(std::int32_t rank, std::int32_t rounds, bool joint, bool is_pre_rope, bool leaves_some = false) {
    SCOPED_TRACE(testing::Message() << rank << " " << rounds << " " << joint << is_pre_rope);
    const std::int32_t d = 11, kv_heads = 2;
    const std::vector<std::int32_t> len{4, 4, 60, 60, 40, 40}, entries{0, 0, 40, 40, 7, 7}, tokens{0, 0, 33, 33, 3, 3};
    ListedFixture<T> f({.kv_heads = kv_heads, .head_dim = d, .page_tokens = 8}, len, entries, tokens, 1);
    // Few strong directions, as keys have: what the iteration finds is well determined.
    const std::vector<float> direction = random_elements<float>(3 * d, 2), size = random_elements<float>(3 * 4096, 3);
    std::size_t at = 0;
    f.rows.for_each_token([&](std::int32_t, std::int32_t, std::size_t slot) {
      for (std::size_t c = 0; c < d; ++c)
        for (std::size_t j = 0; j < 3; ++j)
          f.rows.k[slot * d + c] = f.rows.k[slot * d + c] * 0.1F + direction[j * d + c] * size[3 * at + j] / static_cast<float>(1 + 3 * j);
      ++at;
    });
    f.rows.upload();
    for (float& x : f.rows.k) x = to_float(from_float<T>(x));
    std::int32_t positions = 0;
    f.rows.for_each_token(
        [&](std::int32_t, std::int32_t, std::size_t slot) { positions = std::max(positions, f.rows.position[slot] + 1); });
    RowArrays<float> pre_rope({positions * kv_heads * d, positions * kv_heads * d, positions * kv_heads * d});
    for (std::size_t s = 0; s < 3; ++s) {  // of the same few directions
      const std::vector<float> noise = random_elements<float>(positions * kv_heads * d, 30 + s, 0.05F);
      for (std::size_t i = 0; i < noise.size(); ++i) {
        pre_rope.row(s)[i] = noise[i];
        for (std::size_t j = 0; j < 3; ++j)
          pre_rope.row(s)[i] += direction[j * d + i % d] * size[(3 * (i / d) + j) % size.size()] / static_cast<float>(1 + 3 * j);
      }
    }
    pre_rope.upload();
    const LowRankFactor shape{f.host(), joint, rank, rounds, 5, pre_rope.host(), is_pre_rope};
    Twice<std::uint16_t> left(left_numbers(shape)), right(right_numbers(shape));
    const auto factor = [&](bool gpu) {
      return LowRankFactor{f.at(gpu), joint, rank, rounds, 5, pre_rope.at(gpu), is_pre_rope, left.at(gpu), right.at(gpu)};
    };
    run_both(factor);
    // Every third listed token of a row stays as it is, of one head other ones than of the next.
    std::vector<std::int64_t> exact_first{0};
    Ints exact;
    for (std::size_t r = 0; r < tokens.size(); ++r) {
      for (std::int32_t i = static_cast<std::int32_t>(r % 2); i < tokens[r]; i += 3)
        exact.push_back(f.index[static_cast<std::size_t>(f.first[r] + i)]);
      exact_first.push_back(static_cast<std::int64_t>(exact.size()));
    }
    Twice<std::int32_t> all_exact(exact);
    const std::vector<float> before = f.rows.k;
    run_both([&](bool gpu) {
      LowRankFactor a = factor(gpu);
      a.unpacks = true, a.exact_first = leaves_some ? exact_first.data() : nullptr, a.exact = all_exact.at(gpu);
      return a;
    });
    const std::vector<float> got = f.rows.device_keys(cuda());
    f.rows.for_each_token([&](std::int32_t r, std::int32_t i, std::size_t slot) {
      const auto row = exact.begin() + exact_first[static_cast<std::size_t>(r)],
                 end = exact.begin() + exact_first[static_cast<std::size_t>(r) + 1];
      if (!leaves_some || !std::binary_search(row, end, i)) return;
      for (std::size_t c = slot * d; c < (slot + 1) * d; ++c) ASSERT_EQ(f.rows.k[c], before[c]) << r << " " << i;
      for (std::size_t c = slot * d; c < (slot + 1) * d; ++c) ASSERT_EQ(got[c], before[c]) << r << " " << i;
    });
    f.rows.for_each_token([&](std::int32_t r, std::int32_t i, std::size_t slot) {
      for (std::size_t c = slot * d; c < (slot + 1) * d; ++c) ASSERT_NEAR(got[c], f.rows.k[c], 0.02) << r << " " << i;
    });
  }
};

TEST_F(LowRankCuda, EqualsCpuVersion) {
  check<f16>(3, 2, false, false);
  check<float>(3, 3, true, false);
  check<float>(30, 2, true, true);  // more than the matrices have
  check<f16>(3, 2, false, true);
  check<float>(11, 0, false, false);
}

TEST_F(LowRankCuda, LeavesListedTokensAsTheyAre) {
  check<f16>(3, 2, true, true, true);
  check<float>(3, 2, false, false, true);
}

}  // namespace
}  // namespace kvlab
