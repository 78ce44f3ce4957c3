#include "kernels/storage/channel_divisors_op.h"
#include "kernels/storage/channel_stats_op.h"
#include "kernels/storage/outliers/outliers.h"
#include "kernels/storage/prune_channels_op.h"
#include "kernels/storage/sparsify_op.h"
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

TEST_F(ChannelFormatsCuda, SparsifyEqualsCpuVersion) {
  for (const std::int32_t d : {20, 130}) {
    for (const std::int32_t keep : {0, 9, 20}) {
      ListedFixture<f16> f({.kv_heads = 2, .head_dim = d, .page_tokens = 8}, {0, 9, 20, 50}, {0, 7, 20, 30}, {0, 7, 12, 30}, 2);
      for (float& x : f.rows.k) x = std::round(x * 4) / 4;
      f.rows.upload();
      const std::vector<std::uint8_t> before(static_cast<std::size_t>(f.first.back() * most_sparse_bytes(d, keep)), 9);
      std::vector<std::uint8_t> packed = before;
      run_cpu(Sparsify{f.host(), keep, packed.data()});
      const DeviceBuffer<std::uint8_t> device_packed(before);
      run_cuda(Sparsify{f.device(), keep, device_packed.data()}, cuda());
      EXPECT_EQ(device_packed.to_host(cuda().stream()), packed);
      run_cpu(Sparsify{f.host(), keep, packed.data(), true});
      run_cuda(Sparsify{f.device(), keep, device_packed.data(), true}, cuda());
      expect_same_cache(f);
    }
  }
}

TEST_F(ChannelFormatsCuda, PruneChannelsEqualsCpuVersion) {
  ListedFixture<bf16> f({.kv_heads = 2, .head_dim = 40, .page_tokens = 8}, {0, 9, 70, 300}, {0, 7, 60, 150}, {0, 7, 50, 150}, 3);
  std::vector<float> score = random_elements<float>(160, 4);
  for (float& x : score) x = std::round(x * 4);
  const DeviceBuffer<float> device_score(score);
  const Ints line{2, 0, 3, 1};
  run_cpu(PruneChannels{f.host(true), score.data(), line.data(), 25});
  run_cuda(PruneChannels{f.device(true), device_score.data(), line.data(), 25}, cuda());
  expect_same_cache(f);
}

TEST_F(ChannelFormatsCuda, BalanceChannelsEqualCpuVersions) {
  const std::int32_t d = 40;
  RowsFixture<f16> rows({.kv_heads = 2, .group = 3, .head_dim = d}, {1, 1, 1, 1}, 5);
  const QueriesFixture queries({0, 5}, {3, 9}, 6, d, 6);
  const Ints line{3, 0, -1, 1};
  std::vector<float> largest(4 * d, 0.5F), lines = random_elements<float>(4 * d, 7);
  for (float& x : lines) x = std::abs(x);
  lines[2] = 0;
  const DeviceBuffer<float> device_largest(largest), device_lines(lines);
  const auto raised = [&](const KvRows& kv, const Queries* q, float* out) {
    ChannelStats stats{kv, ChannelStats::Source::kQueries};
    stats.queries = q, stats.line = line.data(), stats.into = ChannelStats::Into::kRaise, stats.out = out;
    return stats;
  };
  run_cpu(raised(rows.host(), queries.host(), largest.data()));
  run_cuda(raised(rows.device(), queries.device(), device_largest.data()), cuda());
  EXPECT_EQ(device_largest.to_host(cuda().stream()), largest);
  ChannelDivisors balance{4, d, line.data(), ChannelDivisors::Kind::kBalance, lines.data()};
  balance.largest_q = largest.data();
  run_cpu(balance);
  balance.largest_q = device_largest.data(), balance.lines = device_lines.data();
  run_cuda(balance, cuda());
  EXPECT_TRUE(all_near(device_lines.to_host(cuda().stream()), lines, 0, 1e-6));
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
  for (float& x : out) x = std::abs(x) + 0.01F;
  out[3] = 0;
  for (const std::int32_t outliers : {0, 5}) {
    std::vector<float> expected = out;
    run_cpu(ChannelDivisors{4, d, line.data(), ChannelDivisors::Kind::kSmooth, expected.data(), 0.5F, outliers > 0, outliers});
    const DeviceBuffer<float> smooth(out);
    run_cuda(ChannelDivisors{4, d, line.data(), ChannelDivisors::Kind::kSmooth, smooth.data(), 0.5F, outliers > 0, outliers}, cuda());
    EXPECT_TRUE(all_near(smooth.to_host(cuda().stream()), expected, 0, 1e-5));
  }
}

}  // namespace
}  // namespace kvlab
