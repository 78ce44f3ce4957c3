#include "kernels/storage/channel_stats_op.h"
#include "kernels/storage/outliers_op.h"
#include "kernels/storage/stored/stored_code.h"
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
    Outliers a{f.host(values), per_channel, share, nullptr, {}};
    const auto n = static_cast<std::size_t>(outlier_numbers(a));
    Halves value(n, 7), narrow_place(n, 7);
    Ints place(n, 7);
    a.value = value.data();
    if (narrow)
      a.place.narrow = narrow_place.data();
    else
      a.place.wide = place.data();
    run_cpu(a);
    const DeviceBuffer<std::uint16_t> device_value(Halves(n, 7)), device_narrow(Halves(n, 7));
    const DeviceBuffer<std::int32_t> device_place(Ints(n, 7));
    Outliers b{f.device(values), per_channel, share, device_value.data(), {}};
    if (narrow)
      b.place.narrow = device_narrow.data();
    else
      b.place.wide = device_place.data();
    run_cuda(b, cuda());
    EXPECT_EQ(device_value.to_host(cuda().stream()), value);
    EXPECT_EQ(device_place.to_host(cuda().stream()), place);
    EXPECT_EQ(device_narrow.to_host(cuda().stream()), narrow_place);
    expect_same_cache(f, 1e-3);  // means, summed in another order, on either side of a rounding
    run_cpu(unpacking(a));
    run_cuda(unpacking(b), cuda());
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
  std::vector<float> out(4 * d, 0.5F);
  const DeviceBuffer<float> device_out(out);
  for (const auto source : {ChannelStats::Source::kKeys, ChannelStats::Source::kValues, ChannelStats::Source::kQueries}) {
    for (const auto kind : {ChannelStats::Kind::kMaxAbs, ChannelStats::Kind::kMeanSquare}) {
      const bool lists = kind == ChannelStats::Kind::kMeanSquare;
      const auto into = lists ? ChannelStats::Into::kMultiply : ChannelStats::Into::kWrite;
      const ListedTokens host = f.host(), device = f.device();
      run_cpu(ChannelStats{f.rows.host(), source, kind, lists ? host : ListedTokens{}, queries.host(), line.data(), into, out.data()});
      run_cuda(ChannelStats{f.rows.device(), source, kind, lists ? device : ListedTokens{}, queries.device(), line.data(), into,
                            device_out.data()},
               cuda());
      EXPECT_TRUE(all_near(device_out.to_host(cuda().stream()), out, 0, 1e-6));
    }
  }
}

}  // namespace
}  // namespace kvlab
