#include <cstring>

#include "policies/kv/format/exponent_code/exponent_code.h"
#include "tests/cuda/listed_fixture.h"

namespace kvlab {
namespace {

class CodecCuda : public CudaTest {};

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
