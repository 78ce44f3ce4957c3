#include <cstring>

#include "policies/kv/format/exponent_code/exponent_code.h"
#include "policies/kv/selector/low_bit_copy/low_bit_copy.h"
#include "tests/cuda/listed_fixture.h"

namespace kvlab {
namespace {

class CodecCuda : public CudaTest {};

TEST_F(CodecCuda, LowBitCopyEqualsCpuVersion) {
  const Ints len{0, 9, 70, 40}, covered{0, 8, 64, 0}, coded{0, 0, 32, 0};
  for (const std::int32_t bits : {1, 2, 4}) {
    RowsFixture<f16> rows({.kv_heads = 2, .head_dim = 20, .page_tokens = 8}, len, 1),
        copy({.kv_heads = 2, .head_dim = 20, .page_tokens = 70}, len, 2);
    run_cpu(LowBitCopy{rows.host(), {bits, 8}, coded.data(), covered.data(), copy.host()});
    run_cuda(LowBitCopy{rows.device(), {bits, 8}, coded.data(), covered.data(), copy.device()}, cuda());
    const std::vector<float> k = copy.device_keys(cuda()), v = copy.device_values(cuda());
    copy.for_each_token([&](std::int32_t r, std::int32_t i, std::size_t slot) {
      for (std::size_t c = slot * 20; c < slot * 20 + 20; ++c) {
        ASSERT_EQ(k[c], to_float(from_float<f16>(copy.k[c]))) << r << " " << i;
        ASSERT_EQ(v[c], to_float(from_float<f16>(copy.v[c]))) << r << " " << i;
      }
    });
    const QueriesFixture queries({1, 3}, {200, 200}, 2, 20, 3);
    std::vector<float> sum(119, 0.0F);
    const DeviceBuffer<float> device_sum(sum);
    const auto attention = [&](const KvRows& kv, const Queries* q, float* out) {
      LowBitAttention a;
      a.stats.kv = kv, a.stats.queries = q, a.stats.sum = out, a.code = {bits, 8}, a.covered = covered.data();
      return a;
    };
    for (float& x : copy.k) x = to_float(from_float<f16>(x));
    run_cpu(attention(copy.host(), queries.host(), sum.data()));
    run_cuda(attention(copy.device(), queries.device(), device_sum.data()), cuda());
    EXPECT_TRUE(all_near(device_sum.to_host(cuda().stream()), sum, 1e-5, 1e-4));
  }
}

TEST_F(CodecCuda, ExponentCodeEqualsCpuVersion) {
  ListedFixture<bf16> f({.kv_heads = 2, .head_dim = 40, .page_tokens = 8}, {0, 9, 70, 200, 5, 5}, {0, 7, 65, 150, 0, 0},
                        {0, 7, 43, 150, 0, 0}, 5);
  for (const bool values : {false, true}) {
    Ints bytes{5, 5, 5, 5, 5, 5}, got = bytes;
    run_cpu(ExponentCode{f.host(values), bytes.data()});
    run_cuda(ExponentCode{f.device(values), got.data()}, cuda());
    EXPECT_EQ(got, bytes);
  }
}

TEST_F(CodecCuda, ExponentCodeComesBackBitForBit) {
  ListedFixture<bf16> f({.kv_heads = 2, .head_dim = 40, .page_tokens = 8}, {0, 9, 70, 200, 5, 5}, {0, 7, 65, 150, 0, 0},
                        {0, 7, 43, 150, 0, 0}, 5);
  const std::int64_t room = most_exponent_bytes(f.host());
  std::vector<std::uint8_t> packed(static_cast<std::size_t>(room)), lengths(3 * kExponentTable);
  std::vector<std::int64_t> begin(6), end(6), got_begin(6), got_end(6);
  Ints bytes(6, 0), got(6, 0);
  run_cpu(ExponentCode{f.host(), bytes.data(), packed.data(), lengths.data(), begin.data(), end.data()});
  DeviceBuffer<std::uint8_t> device_packed(std::vector<std::uint8_t>(packed.size(), 0)),
      device_lengths(std::vector<std::uint8_t>(lengths.size(), 0));
  run_cuda(ExponentCode{f.device(), got.data(), device_packed.data(), device_lengths.data(), got_begin.data(), got_end.data()}, cuda());
  EXPECT_EQ(got_begin, begin);
  EXPECT_EQ(got_end, end);
  EXPECT_EQ(device_packed.to_host(cuda().stream()), packed);
  EXPECT_EQ(device_lengths.to_host(cuda().stream()), lengths);
  const std::vector<float> before = f.rows.device_keys(cuda());
  run_cuda(ExponentCode{f.device(), nullptr, device_packed.data(), device_lengths.data(), got_begin.data(), got_end.data(), true}, cuda());
  const std::vector<float> after = f.rows.device_keys(cuda());
  ASSERT_EQ(after.size(), before.size());
  EXPECT_EQ(std::memcmp(after.data(), before.data(), before.size() * sizeof(float)), 0);  // slots that no row owns are NaN
}

}  // namespace
}  // namespace kvlab
