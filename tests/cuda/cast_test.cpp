#include "kernels/storage/cast/cast.h"

#include "tests/cuda/rows_fixture.h"

namespace kvlab {
namespace {

class CastCuda : public CudaTest {
 protected:
  // The CPU's bytes, and what comes back rounded once to T.
  template <class T>
  void check(StoredType type, std::int32_t head_dim, const std::vector<std::int32_t>& lengths, bool values, bool extremes) {
    SCOPED_TRACE(testing::Message() << name_of(kElementType<T>) << " to " << static_cast<int>(type) << " head_dim " << head_dim);
    RowsFixture<T> rows({1, 1, head_dim, 16, 0}, lengths, 41, 10.0F);
    std::mt19937_64 random(42);
    if (extremes) {  // any bits: infinities, NaN, subnormals, all exponents
      for (float& x : values ? rows.v : rows.k) x = to_float(from_float<T>(std::bit_cast<float>(static_cast<std::uint32_t>(random()))));
      rows.upload();
    }
    std::vector<std::int64_t> first{0};
    std::vector<std::int32_t> list;
    for (const std::int32_t n : lengths) {
      for (std::int32_t i = 0; i < n; ++i)
        if (random() % 4 != 0) list.push_back(i);
      for (std::uint64_t i = 0; i < random() % 3; ++i) list.push_back(-1);
      first.push_back(static_cast<std::int64_t>(list.size()));
    }
    Twice<std::int32_t> index(list);
    Twice<std::uint8_t> stored(first.back() * head_dim * bytes_of(type));
    const auto op = [&](bool gpu, bool unpacks) {
      return Cast{{rows.at(gpu), first.data(), index.at(gpu), values}, type, stored.at(gpu), unpacks};
    };
    run_both([&](bool gpu) { return op(gpu, false); });
    EXPECT_EQ(stored.device(cuda()), stored.host());
    std::vector<float>& exact = values ? rows.v : rows.k;
    const auto expect_exact = [&](bool has_nan) {
      const std::vector<float> got = values ? rows.device_values(cuda()) : rows.device_keys(cuda());
      for (std::size_t i = 0; i < got.size(); ++i) {
        const float wanted = to_float(from_float<T>(exact[i]));
        ASSERT_TRUE(got[i] == wanted || (has_nan && std::isnan(got[i]) && std::isnan(wanted)))
            << "element " << i << ": " << got[i] << ", not " << wanted;
      }
    };
    expect_exact(true);
    std::fill(exact.begin(), exact.end(), 3.0F);  // back into vectors that hold something else
    rows.upload();
    run_both([&](bool gpu) { return op(gpu, true); });
    expect_exact(false);
  }
};

TEST_F(CastCuda, HasTheCpusBytes) {
  for (const StoredType type : {StoredType::kFp32, StoredType::kFp16, StoredType::kBf16, StoredType::kFp8E4M3, StoredType::kFp8E5M2})
    for (const bool extremes : {false, true}) {
      check<float>(type, 64, {40, 0, 33, 1}, false, extremes);
      check<bf16>(type, 128, {17, 200}, true, extremes);
      check<f16>(type, 24, {31, 9}, true, extremes);
      check<float>(type, 7, {31, 65}, true, extremes);
    }
  check<bf16>(StoredType::kFp8E4M3, 64, {0, 0}, false, false);
}

}  // namespace
}  // namespace kvlab
