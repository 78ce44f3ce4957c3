#include "kernels/storage/channel_stats_op.h"
#include "kernels/storage/outliers_op.h"
#include "kernels/storage/stored/stored_code.h"
#include "policies/kv/format/exponent_code/exponent_code.h"
#include "tests/cuda/listed_fixture.h"

namespace kvlab {
namespace {

using Halves = std::vector<std::uint16_t>;

class ChannelFormatsCuda : public CudaTest {
 protected:
  // All slots of the pool; what no token owns is NaN in both.
  template <class T>
  void expect_same_cache(ListedFixture<T>& f, double tolerance = 0) {
    const std::vector<float> k = f.rows.device_keys(cuda()), v = f.rows.device_values(cuda());
    const auto same = [&](float x, float y) {
      return x == y || (std::isnan(x) && std::isnan(y)) || std::abs(x - y) <= static_cast<float>(tolerance) * std::max(1.0F, std::abs(y));
    };
    for (std::size_t i = 0; i < k.size(); ++i) {
      ASSERT_TRUE(same(k[i], to_float(from_float<T>(f.rows.k[i])))) << i << ": " << k[i] << " " << f.rows.k[i];
      ASSERT_TRUE(same(v[i], to_float(from_float<T>(f.rows.v[i])))) << i << ": " << v[i] << " " << f.rows.v[i];
    }
  }

  template <class T>
  void check_outliers(double share, bool per_channel, bool values, bool narrow) {
    SCOPED_TRACE(testing::Message() << share << per_channel << values << narrow);
    ListedFixture<T> f({.kv_heads = 2, .head_dim = 40, .page_tokens = 8}, {0, 9, 70, 300}, {0, 7, 60, 150}, {0, 7, 50, 150}, 1);
    for (float& x : f.rows.k) x = std::round(x * 16) / 16;  // ties
    f.rows.upload();
    const auto n = static_cast<std::size_t>(outlier_numbers({f.host(values), per_channel, share, nullptr, {}}));
    Twice<std::uint16_t> value(Halves(n, 7)), narrow_place(Halves(n, 7));
    Twice<std::int32_t> place(Ints(n, 7));
    const auto op = [&](bool gpu) {
      Outliers a{f.at(gpu, values), per_channel, share, value.at(gpu), {}};
      if (narrow)
        a.place.narrow = narrow_place.at(gpu);
      else
        a.place.wide = place.at(gpu);
      return a;
    };
    run_both(op);
    EXPECT_EQ(value.device(cuda()), value.host());
    EXPECT_EQ(place.device(cuda()), place.host());
    EXPECT_EQ(narrow_place.device(cuda()), narrow_place.host());
    expect_same_cache(f, 1e-3);  // means, summed in another order, on either side of a rounding
    run_both([&](bool gpu) { return unpacking(op(gpu)); });
    expect_same_cache(f, 1e-3);
  }
};

TEST_F(ChannelFormatsCuda, OutliersEqualCpuVersion) {
  check_outliers<f16>(0.1, true, false, true);
  check_outliers<f16>(0.3, false, true, false);
  check_outliers<float>(0.9, true, true, false);
  check_outliers<float>(0.0, false, false, true);
  check_outliers<float>(0.3, false, false, true);
  check_outliers<bf16>(1.0, false, false, false);
}

TEST_F(ChannelFormatsCuda, ChannelStatsEqualCpuVersions) {
  const std::int32_t d = 40;
  ListedFixture<f16> f({.kv_heads = 2, .group = 3, .head_dim = d, .page_tokens = 8}, {0, 9, 70, 300}, {0, 7, 60, 150}, {0, 7, 50, 150}, 8);
  const QueriesFixture queries({0, 5}, {3, 9}, 6, d, 9);
  const Ints line{2, 0, -1, 3};
  Twice<float> out(std::vector<float>(4 * d, 0.5F));
  for (const auto source : {ChannelStats::Source::kKeys, ChannelStats::Source::kValues, ChannelStats::Source::kQueries})
    for (const auto kind : {ChannelStats::Kind::kMaxAbs, ChannelStats::Kind::kMeanSquare}) {
      const bool lists = kind == ChannelStats::Kind::kMeanSquare;
      const auto into = lists ? ChannelStats::Into::kMultiply : ChannelStats::Into::kWrite;
      run_both([&](bool gpu) {
        const ListedTokens listed = lists ? f.at(gpu) : ListedTokens{};
        return ChannelStats{f.rows.at(gpu), source, kind, listed, queries.at(gpu), line.data(), into, out.at(gpu)};
      });
      EXPECT_TRUE(all_near(out.device(cuda()), out.host(), 0, 1e-6));
    }
}

TEST_F(ChannelFormatsCuda, ExponentCodeComesBackBitForBit) {
  ListedFixture<bf16> f({.kv_heads = 2, .head_dim = 40, .page_tokens = 8}, {0, 9, 70, 200, 5, 5}, {0, 7, 65, 150, 0, 0},
                        {0, 7, 43, 150, 0, 0}, 5);
  for (const bool values : {false, true}) {
    Ints bytes[2] = {Ints(6, 5), Ints(6, 5)};
    run_both([&](bool gpu) { return ExponentCode{f.at(gpu, values), bytes[gpu].data()}; });
    EXPECT_EQ(bytes[1], bytes[0]);
  }
  using Bytes = std::vector<std::uint8_t>;
  Twice<std::uint8_t> packed(Bytes(static_cast<std::size_t>(most_exponent_bytes(f.host())))), lengths(Bytes(3 * kExponentTable));
  Longs begin[2] = {Longs(6), Longs(6)}, end[2] = {Longs(6), Longs(6)};
  Ints bytes[2] = {Ints(6), Ints(6)};
  run_both([&](bool gpu) {
    return ExponentCode{f.at(gpu), bytes[gpu].data(), packed.at(gpu), lengths.at(gpu), begin[gpu].data(), end[gpu].data()};
  });
  EXPECT_EQ(begin[1], begin[0]);
  EXPECT_EQ(end[1], end[0]);
  EXPECT_EQ(packed.device(cuda()), packed.host());
  EXPECT_EQ(lengths.device(cuda()), lengths.host());
  const std::vector<float> before = f.rows.device_keys(cuda());
  run_cuda(ExponentCode{f.device(), nullptr, packed.at(true), lengths.at(true), begin[1].data(), end[1].data(), true}, cuda());
  const std::vector<float> after = f.rows.device_keys(cuda());
  ASSERT_EQ(after.size(), before.size());
  EXPECT_EQ(std::memcmp(after.data(), before.data(), before.size() * sizeof(float)), 0);  // slots that no row owns are NaN
}

}  // namespace
}  // namespace kvlab
