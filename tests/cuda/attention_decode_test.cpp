#include "kernels/attention_decode/attention_decode_cuda.h"
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

// Queries and probabilities in fp16; decoded values are rounded to fp16 once more.
TEST_F(AttentionDecodeCuda, BytesEqualCpuVersion) {
  for (const KvFormat format : {KvFormat::kFp8, KvFormat::kInt8})
    for (const std::int32_t head_dim : {64, 128, 256}) {
      check({format, ElementType::kF16, head_dim, 4, 1, 16, {1, 0, 17, 95}}, kF16Error);
      check({format, ElementType::kBf16, head_dim, 12, 1, 32, {32, 63}}, kBf16Error);
    }
}

// Lengths around what a window keeps: 32 to 95 tokens of int4, 32 to 63 of int2.
TEST_F(AttentionDecodeCuda, KiviEqualsCpuVersion) {
  for (const KvFormat format : {KvFormat::kKivi4, KvFormat::kKivi2})
    for (const std::int32_t head_dim : {64, 128, 256}) {
      check({format, ElementType::kF16, head_dim, 4, 1, 0, {0, 31, 63, 64, 95, 96, 97, 200}}, kF16Error);
      check({format, ElementType::kBf16, head_dim, 16, 1, 0, {230}}, kBf16Error);
    }
}

TEST_F(AttentionDecodeCuda, CodesByTokenEqualCpuVersion) {
  for (const KvFormat format : {KvFormat::kToken4, KvFormat::kToken2})
    for (const std::int32_t head_dim : {64, 128, 256}) {
      check({format, ElementType::kF16, head_dim, 4, 1, 0, {0, 1, 63, 64, 65, 150}}, kF16Error);
      check({format, ElementType::kBf16, head_dim, 16, 1, 0, {100}}, kBf16Error);
    }
}

TEST_F(AttentionDecodeCuda, EveryTuningAndSplitGivesTheSame) {
  for (const KvFormat format : {KvFormat::kBf16, KvFormat::kFp8, KvFormat::kKivi4, KvFormat::kKivi2, KvFormat::kToken2})
    for (int tuning = 0; tuning < static_cast<int>(decode_tunings(format, 128).size()); ++tuning)
      check({format, ElementType::kBf16, 128, 4, 2, 16, {600, 190}}, kBf16Error, tuning, tuning % 3 + 1);
  check({KvFormat::kF16, ElementType::kF16, 64, 2, 2, 32, {1000, 0, 65, 700}}, kF16Error, -1, 9);
}

}  // namespace
}  // namespace kvlab
