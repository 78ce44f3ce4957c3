#include "kernels/storage/token_copy_op.h"
#include "tests/cuda/listed_fixture.h"

namespace kvlab {
namespace {

class TokenCopyCuda : public CudaTest {
 protected:
  // Channels 0, 3, 6, ... of even rows and the last ones of odd rows.
  static std::vector<std::uint8_t> some_channels(std::int32_t rows, std::int32_t d, std::int32_t keep) {
    std::vector<std::uint8_t> mask(static_cast<std::size_t>(rows * ((d + 7) / 8)), 0);
    for (std::int32_t r = 0; r < rows; ++r)
      for (std::int32_t i = 0; i < keep; ++i) {
        const std::int32_t c = r % 2 == 0 ? 3 * i % d : d - 1 - i;
        mask[static_cast<std::size_t>(r * ((d + 7) / 8) + c / 8)] |= static_cast<std::uint8_t>(1U << (c % 8));
      }
    return mask;
  }

  template <class T>
  void check_vectors(std::int32_t d, std::int32_t keep, bool values) {
    SCOPED_TRACE(testing::Message() << d << " channels of which " << keep);
    ListedFixture<T> f({.kv_heads = 2, .head_dim = d, .page_tokens = 8}, {0, 9, 70, 300}, {0, 7, 60, 150}, {0, 7, 50, 150}, 3);
    std::vector<float>& pool = values ? f.rows.v : f.rows.k;
    for (std::size_t i = 0; i < pool.size(); i += 97) pool[i] = std::numeric_limits<float>::infinity();
    f.rows.upload();
    Twice<std::uint8_t> mask(some_channels(4, d, keep));
    const auto n = static_cast<std::size_t>(f.first.back() * (keep > 0 ? keep : d));
    std::vector<float> stored(n, 5.0F);
    const DeviceBuffer<T> device_stored(std::vector<T>(n, from_float<T>(5.0F)));
    TokenCopy a{.tokens = f.host(values), .stored = stored.data(), .keep = keep}, b = a;
    b.tokens = f.device(values), b.stored = device_stored.data();
    if (keep > 0) a.channels = mask.at(false), b.channels = mask.at(true);
    run_cpu(a);
    run_cuda(b, cuda());
    EXPECT_EQ(floats(device_stored.to_host(cuda().stream())), stored);
    std::fill(pool.begin(), pool.end(), 7.0F);
    f.rows.upload();
    b.tokens = f.device(values), a.way = b.way = TokenCopy::Way::kIntoPages;
    run_cpu(a);
    run_cuda(b, cuda());
    EXPECT_EQ(values ? f.rows.device_values(cuda()) : f.rows.device_keys(cuda()), pool);
  }
};

TEST_F(TokenCopyCuda, VectorsEqualCpuVersion) {
  check_vectors<bf16>(40, 0, false);
  check_vectors<f16>(40, 25, true);
  check_vectors<float>(13, 5, false);
  check_vectors<bf16>(128, 77, true);
}

TEST_F(TokenCopyCuda, WordsEqualCpuVersion) {
  for (const std::int32_t words : {0, 1, 3}) {
    RowsFixture<bf16> rows({.kv_heads = 2, .head_dim = 8, .page_tokens = 8, .num_words = words}, {0, 9, 70, 2000}, 5);
    std::mt19937_64 random(6);
    for (std::uint32_t& w : rows.words) w = static_cast<std::uint32_t>(random());
    rows.upload();
    Twice<std::uint32_t> stored((1 + words) * rows.first.back());
    run_both([&](bool gpu) { return copy_words(rows.at(gpu), TokenCopy::Way::kFromPages, stored.at(gpu)); });
    EXPECT_EQ(stored.device(cuda()), stored.host());
    std::fill(rows.words.begin(), rows.words.end(), 9);
    std::fill(rows.position.begin(), rows.position.end(), -4);
    rows.upload();
    run_both([&](bool gpu) { return copy_words(rows.at(gpu), TokenCopy::Way::kIntoPages, stored.at(gpu)); });
    EXPECT_EQ(rows.device_words(cuda()), rows.words);
    EXPECT_EQ(rows.device_positions(cuda()), rows.position);
  }
}

}  // namespace
}  // namespace kvlab
