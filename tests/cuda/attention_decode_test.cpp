#include "kernels/attention/attention_decode/attention_decode.h"

#include "kernels/attention/merge_partials/merge_partials.h"
#include "tests/cuda/paged_cache.h"

namespace kvlab {
namespace {

// A row without tokens has log_sum -infinity, which all_near() refuses.
std::vector<float> finite(std::vector<float> x) {
  for (float& value : x) value = value == -INFINITY ? -1e30F : value;
  return x;
}

class AttentionDecodeCuda : public CudaTest {
 protected:
  // One call on a cache, against attention over what the cache decodes to.
  void check(const CacheShape& shape, double tolerance, int tuning = -1, int splits = 0) {
    SCOPED_TRACE(testing::Message() << name_of(shape.format) << ", head_dim " << shape.head_dim << ", group " << shape.group << ", "
                                    << shape.len.size() << " rows, tuning " << tuning << ", splits " << splits);
    PagedCache cache(shape);
    const DecodeReference reference = cache.reference();
    const auto out = same_in_every_order([&] {
      DecodeOutputs o(cache);
      PagedDecode a = cache.call(o);
      a.tuning = tuning, a.splits = splits;
      run_cuda(a, cuda());
      EXPECT_TRUE(all_near(finite(o.log_sum.to_host()), finite(reference.log_sum), 1e-3, 1e-5));
      return o.read_out(shape.type);
    });
    EXPECT_TRUE(all_near(out, reference.out, tolerance, tolerance));
  }
};

// Probabilities and results are rounded to bf16 (2^-9 of each) or fp16 (2^-12); errors of products of random sign mostly cancel.
constexpr double kBf16Error = 0x1p-7, kF16Error = 0x1p-10;

TEST_F(AttentionDecodeCuda, PlainEqualsCpuVersion) {
  for (const std::int32_t head_dim : {64, 96, 128, 256}) {
    check({KvFormat::kBf16, ElementType::kBf16, head_dim, 4, 2, 16, {0, 1, 15, 16, 17, 70}}, kBf16Error);
    check({KvFormat::kF16, ElementType::kF16, head_dim, 16, 1, 32, {33, 150}}, kF16Error);
  }
  for (const std::int32_t group : {1, 3, 7, 8, 9}) check({KvFormat::kBf16, ElementType::kBf16, 128, group, 1, 64, {100}}, kBf16Error);
}

// Queries and probabilities in fp16; values decoded from bytes are rounded to fp16 once more. KIVI's lengths are around what a window
// keeps: 32 to 95 tokens of int4, 32 to 63 of int2.
TEST_F(AttentionDecodeCuda, BytesAndCodesEqualCpuVersion) {
  struct Formats {
    std::vector<KvFormat> formats;
    std::int32_t f16_page, bf16_group, bf16_page;
    Ints f16_len, bf16_len;
  };
  const Formats cases[] = {{{KvFormat::kFp8, KvFormat::kInt8}, 16, 12, 32, {1, 0, 17, 95}, {32, 63}},
                           {{KvFormat::kKivi4, KvFormat::kKivi2}, 0, 16, 0, {0, 31, 63, 64, 95, 96, 97, 200}, {230}},
                           {{KvFormat::kToken4, KvFormat::kToken2}, 0, 16, 0, {0, 1, 63, 64, 65, 150}, {100}}};
  for (const Formats& c : cases)
    for (const KvFormat format : c.formats)
      for (const std::int32_t head_dim : {64, 128, 256}) {
        check({format, ElementType::kF16, head_dim, 4, 1, c.f16_page, c.f16_len}, kF16Error);
        check({format, ElementType::kBf16, head_dim, c.bf16_group, 1, c.bf16_page, c.bf16_len}, kBf16Error);
      }
}

TEST_F(AttentionDecodeCuda, EveryTuningAndSplitGivesTheSame) {
  for (const KvFormat format : {KvFormat::kBf16, KvFormat::kFp8, KvFormat::kKivi4, KvFormat::kKivi2, KvFormat::kToken2})
    for (int tuning = 0; tuning < static_cast<int>(decode_tunings(format, 128).size()); ++tuning)
      check({format, ElementType::kBf16, 128, 4, 2, 16, {330, 190}}, kBf16Error, tuning, tuning % 3 + 1);
  check({KvFormat::kF16, ElementType::kF16, 64, 2, 2, 32, {1000, 0, 65, 700}}, kF16Error, -1, 9);
}

// Probabilities are those of the logits in fp32; q.k of bytes and codes sums products of fp16 numbers in fp32.
TEST_F(AttentionDecodeCuda, Probabilities) {
  for (const KvFormat format : {KvFormat::kBf16, KvFormat::kInt8, KvFormat::kKivi4, KvFormat::kToken2})
    for (const std::int32_t group : {1, 4, 7, 16}) {
      SCOPED_TRACE(testing::Message() << name_of(format) << ", group " << group);
      PagedCache cache({format, ElementType::kBf16, 128, group, 2, 32, {0, 130, 1, 300}});
      const DecodeReference reference = cache.reference();
      const auto column_sum = same_in_every_order([&] {
        DecodeOutputs o(cache);
        PagedDecode a = cache.call(o);
        a.column_sum = o.column_sum.data(), a.probabilities = o.probabilities.data(), a.log_sum = nullptr, a.splits = group % 3 + 1;
        run_cuda(a, cuda());
        EXPECT_TRUE(all_near(o.probabilities.to_host(), reference.probabilities, 1e-6, 2e-3));
        return o.column_sum.to_host();
      });
      EXPECT_TRUE(all_near(column_sum, reference.column_sum, 1e-6, 2e-3));
    }
}

// Logits of thousands, among them the largest at the end: sums are rescaled, nothing overflows.
TEST_F(AttentionDecodeCuda, LargeLogits) {
  for (const KvFormat format : {KvFormat::kBf16, KvFormat::kInt8, KvFormat::kKivi2}) {
    CacheShape shape{format, ElementType::kBf16, 128, 4, 1, 16, {5, 200}};
    shape.deviation = 30;
    PagedCache cache(shape);
    DecodeOutputs o(cache);
    run_cuda(cache.call(o), cuda());
    EXPECT_LT(relative_error(o.read_out(shape.type), cache.reference().out), 0.02) << name_of(format);
  }
}

// MiKV (Yang et al. 2024): important tokens in 16 bits, the others in 2, attended to apart and put together.
TEST_F(AttentionDecodeCuda, SegmentsOfTwoPrecisionsMerge) {
  const std::vector<std::int32_t> important{40, 0, 17, 3}, others{100, 65, 0, 200};
  PagedCache high({KvFormat::kBf16, ElementType::kBf16, 128, 4, 2, 16, important}),
      low({KvFormat::kToken2, ElementType::kBf16, 128, 4, 2, 0, others});
  const std::int64_t heads = 4 * 4, width = heads * 128;
  const DeviceBuffer<float> parts(2 * width), log_sums(2 * heads), merged(width);
  DecodeOutputs unused(high);
  for (int i = 0; i < 2; ++i) {
    PagedDecode a = (i == 0 ? high : low).call(unused);
    a.out = parts.data() + i * width, a.log_sum = log_sums.data() + i * heads, a.out_type = ElementType::kF32;
    run_cuda(a, cuda());
  }
  run_cuda(DeviceMergePartials{parts.data(), log_sums.data(), merged.data(), nullptr, 2, heads, 128, ElementType::kF32}, cuda());
  const DecodeReference x = high.reference(), y = low.reference();  // the same queries: they are drawn from the same seed
  std::vector<float> expected(static_cast<std::size_t>(width));
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double a = std::exp(static_cast<double>(x.log_sum[i / 128])), b = std::exp(static_cast<double>(y.log_sum[i / 128]));
    expected[i] = static_cast<float>((a * static_cast<double>(x.out[i]) + b * static_cast<double>(y.out[i])) / (a + b));
  }
  EXPECT_TRUE(all_near(merged.to_host(), expected, kBf16Error, kBf16Error));
}

TEST_F(AttentionDecodeCuda, RefusesWhatItCannotDo) {
  PagedCache cache({KvFormat::kBf16, ElementType::kBf16, 128, 4, 1, 16, {20}});
  DecodeOutputs o(cache);
  const auto refused = [&](auto change) {
    PagedDecode a = cache.call(o);
    change(a);
    EXPECT_THROW(run_cuda(a, cuda()), CudaError);
  };
  refused([](PagedDecode& a) { a.q_heads = 17; });
  refused([](PagedDecode& a) { a.kv.head_dim = 80; });
  refused([](PagedDecode& a) { a.kv.page_tokens = 24; });
  refused([](PagedDecode& a) { a.kv.type = ElementType::kF16; });
  refused([](PagedDecode& a) { a.kv.format = KvFormat::kKivi4; });
  refused([](PagedDecode& a) { a.scale = -1; });
  refused([](PagedDecode& a) { a.tuning = 99; });
  PagedDecode none = cache.call(o);
  none.kv.num_rows = 0;
  run_cuda(none, cuda());
}

TEST_F(AttentionDecodeCuda, CountersAreZeroAgain) {
  PagedCache cache({KvFormat::kBf16, ElementType::kBf16, 128, 4, 1, 16, {500, 70}});
  const DecodeReference reference = cache.reference();
  const DeviceBuffer<std::int32_t> counters(std::vector<std::int32_t>(2));
  for (int i = 0; i < 2; ++i) {
    DecodeOutputs o(cache);
    PagedDecode a = cache.call(o);
    a.counters = counters.data(), a.splits = 4;
    run_cuda(a, cuda());
    EXPECT_TRUE(all_near(o.read_out(ElementType::kBf16), reference.out, kBf16Error, kBf16Error));
    EXPECT_EQ(counters.to_host(), std::vector<std::int32_t>(2));
  }
}

// bytes() against sums by hand.
TEST(PagedDecodeBytes, CountsWhatIsStored) {
  PagedDecode a;
  a.kv.format = KvFormat::kBf16, a.kv.num_rows = 16, a.kv.kv_heads = 8, a.kv.head_dim = 128, a.kv.page_tokens = 16;
  a.q_heads = 32, a.kv_tokens = 16 * 100;
  const std::int64_t fixed = 16 * (8 + 4 * 128 * 4);
  EXPECT_EQ(bytes(a), 16 * (100 * 512 + 7 * 4) + fixed);
  a.kv.format = KvFormat::kInt8;
  EXPECT_EQ(bytes(a), 16 * (100 * 260 + 7 * 4) + fixed);
  a.kv.format = KvFormat::kKivi4, a.kv.page_tokens = 64;  // 64 tokens in a page, 36 in the window
  EXPECT_EQ(bytes(a), 16 * (2 * (64 * 64 + 512) + 36 * 512 + 2 * 4) + fixed);
  a.kv.format = KvFormat::kToken2;
  EXPECT_EQ(bytes(a), 16 * (100 * 2 * (32 + 8) + 2 * 4) + fixed);
  EXPECT_EQ(flops(a), 4 * 1600 * 4 * 128);
}

// The choice for the batches that matter on an H100: one block per row where rows fill the GPU, else about one block per multiprocessor or
// more.
TEST(PagedDecodePlan, FillsTheGpu) {
  const GpuInfo h100{"H100", "", 132, 90, std::int64_t{80} << 30, 50 << 20, 232448, 1.7, 2.6};
  PagedDecode a;
  a.kv.format = KvFormat::kBf16, a.kv.kv_heads = 8, a.kv.head_dim = 128, a.kv.page_tokens = 16, a.q_heads = 32;
  const auto splits = [&](std::int32_t batch, std::int32_t tokens) {
    a.kv.num_rows = 8 * batch, a.longest = tokens, a.kv_tokens = std::int64_t{8} * batch * tokens;
    return plan_of(a, h100).splits;
  };
  EXPECT_EQ(splits(64, 4096), 1);
  EXPECT_EQ(splits(32, 4096), 1);
  for (const std::int32_t tokens : {4096, 32768}) {
    EXPECT_GE(splits(1, tokens) * 8, 128);
    EXPECT_LE(splits(1, tokens) * 8, 264);
  }
}

}  // namespace
}  // namespace kvlab
