#include "kernels/model/rope/rotary.h"
#include "kernels/storage/turn_keys_op.h"
#include "tests/cuda/rows_fixture.h"

namespace kvlab {
namespace {

class RenumberCuda : public CudaTest {
 protected:
  // Rows of two sequences with two KV heads; every third token is dropped, and some at the front of odd rows.
  struct Lists {
    explicit Lists(const std::vector<std::int32_t>& lengths, std::int32_t head_dim) {
      for (std::size_t r = 0; r < lengths.size(); ++r) {
        for (std::int32_t i = 0; i < lengths[r]; ++i)
          if (i % 3 != 1 && (r % 2 == 0 || i > 5)) index.push_back(i);
        first.push_back(static_cast<std::int64_t>(index.size()));
      }
      for (const std::int64_t tokens : {4000, 131}) {
        end.push_back(static_cast<std::int32_t>(tokens));
        const std::vector<float> own = Rotary({1e4}, head_dim).frequencies(tokens);
        frequencies.insert(frequencies.end(), own.begin(), own.end());
      }
    }
    [[nodiscard]] Places places(const std::int32_t* at, bool has_rope) const {
      return {first.data(), at, end.data(), has_rope ? frequencies.data() : nullptr};
    }
    std::vector<std::int64_t> first{0};
    std::vector<std::int32_t> index, end;
    std::vector<float> frequencies;
  };

  template <class T>
  static void expect_near(const std::vector<float>& found, const std::vector<float>& expected) {
    const double tolerance = std::is_same_v<T, float> ? 2e-5 : std::is_same_v<T, f16> ? 4e-3 : 4e-2;  // one rounding of values up to 5
    ASSERT_EQ(found.size(), expected.size());
    for (std::size_t i = 0; i < found.size(); ++i) {
      if (std::isnan(expected[i])) continue;  // no token is there
      ASSERT_TRUE(std::abs(found[i] - expected[i]) <= tolerance) << i << ": " << found[i] << " for " << expected[i];
    }
  }

  template <class T>
  void check(std::int32_t head_dim, const std::vector<std::int32_t>& lengths, bool has_rope) {
    const Lists lists(lengths, head_dim);
    Twice<std::int32_t> index(lists.index);
    const RowsShape shape{2, 1, head_dim, 16, 0};
    RowsFixture<T> rows(shape, lengths, 5), out({2, 1, head_dim, 8, 0}, lengths, 6);
    run_both([&](bool gpu) { return TurnKeys{rows.at(gpu), lists.places(index.at(gpu), has_rope), true, out.at(gpu)}; });
    expect_near<T>(out.device_keys(cuda()), out.k);
    expect_near<T>(out.device_values(cuda()), out.v);
    EXPECT_EQ(out.device_positions(cuda()), out.position);
    expect_near<T>(rows.device_keys(cuda()), rows.k);
    run_both([&](bool gpu) { return TurnKeys{rows.at(gpu), lists.places(index.at(gpu), has_rope)}; });
    expect_near<T>(rows.device_keys(cuda()), rows.k);
    expect_near<T>(rows.device_values(cuda()), rows.v);
  }
};

TEST_F(RenumberCuda, TurnsKeysAsTheCpuDoes) {
  for (const bool has_rope : {true, false})
    for (const std::int32_t head_dim : {2, 64, 128}) {
      check<float>(head_dim, {200, 33, 0, 131}, has_rope);
      check<f16>(head_dim, {1, 700, 17, 16}, has_rope);
      check<bf16>(head_dim, {64, 65, 100, 3}, has_rope);
    }
}

}  // namespace
}  // namespace kvlab
