#include "kernels/attention/attention_decode/attention_decode.h"

#include "kernels/attention/merge_partials/merge_partials.h"
#include "kernels/paged_kv.h"
#include "tests/cuda/cuda_fixture.h"
#include "tests/plain_softmax.h"

namespace kvlab {
namespace {

struct CacheShape {
  KvFormat format = KvFormat::kBf16;
  ElementType type = ElementType::kBf16;  // of queries
  std::int32_t head_dim = 128, group = 1, kv_heads = 1, page_tokens = 16;
  std::vector<std::int32_t> len;  // per row
  float deviation = 1.0F;         // of K, V and queries
  std::uint64_t seed = 1;
};

struct DecodeReference {
  std::vector<float> out, log_sum, column_sum, probabilities;
};

// A number of 16 bits of the type, and back.
std::uint16_t bits_of_number(ElementType type, float x) {
  return type == ElementType::kF16 ? from_float<f16>(x).bits : from_float<bf16>(x).bits;
}
float number_of_bits(ElementType type, std::uint16_t bits) {
  return type == ElementType::kF16 ? to_float(f16{bits}) : to_float(bf16{bits});
}

// A ragged batch of random keys and values in pages in random order. Slots of pages after a row's tokens are NaN if the format has NaN.
class PagedCache {
 public:
  struct Outputs {
    explicit Outputs(const PagedCache& cache)
        : type(cache.shape_.type),
          out(cache.lines() * cache.shape_.head_dim),
          log_sum(cache.lines()),
          column_sum(cache.first_.back()),
          probabilities(cache.first_.back() * cache.shape_.group) {}
    [[nodiscard]] std::vector<float> read_out() const {
      std::vector<float> x;
      for (const std::uint16_t bits : out.to_host()) x.push_back(number_of_bits(type, bits));
      return x;
    }

    ElementType type;
    DeviceBuffer<std::uint16_t> out;
    DeviceBuffer<float> log_sum, column_sum, probabilities;
  };

  explicit PagedCache(const CacheShape& shape) : shape_(shape) {
    const std::size_t rows = shape.len.size();
    if (fixed_page_tokens(shape.format) > 0) shape_.page_tokens = fixed_page_tokens(shape.format);
    std::int32_t pages = 1;  // page 0 belongs to nobody
    first_.push_back(0);
    for (const std::int32_t len : shape.len) {
      page_begin_.push_back(static_cast<std::int32_t>(page_.size()));
      for (std::int32_t i = 0; i < len; i += shape_.page_tokens) page_.push_back(pages++);
      first_.push_back(first_.back() + len);
    }
    std::mt19937_64 random(shape.seed);
    std::shuffle(page_.begin(), page_.end(), random);
    const std::int64_t page_size = page_bytes(shape.format, shape.head_dim, shape_.page_tokens);
    std::vector<std::uint8_t> pool_k(static_cast<std::size_t>(pages * page_size), 0xFF), pool_v = pool_k;
    kv_.format = shape.format, kv_.type = shape.type, kv_.num_rows = static_cast<std::int32_t>(rows), kv_.kv_heads = shape.kv_heads;
    kv_.head_dim = shape.head_dim, kv_.page_tokens = shape_.page_tokens;
    const std::size_t window = static_cast<std::size_t>(residual_capacity(shape.format, kv_.residual) * shape.head_dim);
    window_k_.assign(is_kivi(shape.format) ? rows * window : 1, 0xFFFF), window_v_ = window_k_;
    k_.resize(rows), v_.resize(rows);
    for (std::size_t r = 0; r < rows; ++r) fill_row(r, pool_k, pool_v);

    q_ = random_elements<float>(static_cast<std::int64_t>(rows) * shape.group * shape.head_dim, shape.seed + 7, shape.deviation);
    std::vector<std::uint16_t> q;
    for (float& x : q_) {
      q.push_back(bits_of_number(shape.type, x));
      x = number_of_bits(shape.type, q.back());
    }
    device_k_ = DeviceBuffer(pool_k), device_v_ = DeviceBuffer(pool_v), device_q_ = DeviceBuffer(q);
    device_window_k_ = DeviceBuffer(window_k_), device_window_v_ = DeviceBuffer(window_v_);
    device_len_ = DeviceBuffer(shape.len), device_page_begin_ = DeviceBuffer(page_begin_), device_page_ = DeviceBuffer(page_);
    device_first_ = DeviceBuffer(first_);
    device_k_scale_ = DeviceBuffer(k_scale_), device_v_scale_ = DeviceBuffer(v_scale_);
    kv_.len = device_len_.data(), kv_.page_begin = device_page_begin_.data(), kv_.page = device_page_.data();
    kv_.k = device_k_.data(), kv_.v = device_v_.data();
    if (shape.format == KvFormat::kFp8) kv_.k_scale = device_k_scale_.data(), kv_.v_scale = device_v_scale_.data();
    if (is_kivi(shape.format)) kv_.window_k = device_window_k_.data(), kv_.window_v = device_window_v_.data();
  }
  // Attention in double precision over the decoded pages.
  [[nodiscard]] DecodeReference reference() const {
    DecodeReference ref;
    ref.column_sum.assign(static_cast<std::size_t>(first_.back()), 0.0F);
    const auto d = static_cast<std::size_t>(shape_.head_dim);
    for (std::size_t r = 0; r < shape_.len.size(); ++r)
      for (std::size_t h = 0; h < static_cast<std::size_t>(shape_.group); ++h) {
        const float* const q = q_.data() + (r * static_cast<std::size_t>(shape_.group) + h) * d;
        const auto len = static_cast<std::size_t>(shape_.len[r]);
        std::vector<double> p(len);
        for (std::size_t i = 0; i < len; ++i)
          p[i] = plain_dot(q, k_[r].data() + i * d, shape_.head_dim) / std::sqrt(static_cast<double>(d));
        ref.log_sum.push_back(static_cast<float>(plain_softmax(p)));
        ref.probabilities.insert(ref.probabilities.end(), p.begin(), p.end());
        std::vector<double> out(d);
        for (std::size_t i = 0; i < len; ++i) {
          for (std::size_t c = 0; c < d; ++c) out[c] += p[i] * static_cast<double>(v_[r][i * d + c]);
          ref.column_sum[static_cast<std::size_t>(first_[r]) + i] += static_cast<float>(p[i]);
        }
        ref.out.insert(ref.out.end(), out.begin(), out.end());
      }
    return ref;
  }
  [[nodiscard]] PagedDecode call(Outputs& o) const {
    PagedDecode a;
    a.kv = kv_, a.q = device_q_.data(), a.out = o.out.data(), a.log_sum = o.log_sum.data(), a.first = device_first_.data();
    a.q_heads = shape_.kv_heads * shape_.group, a.out_type = shape_.type, a.kv_tokens = first_.back();
    for (const std::int32_t len : shape_.len) a.longest = std::max(a.longest, len);
    return a;
  }

 private:
  [[nodiscard]] std::int64_t lines() const { return std::ssize(shape_.len) * shape_.group; }
  void fill_row(std::size_t r, std::vector<std::uint8_t>& pool_k, std::vector<std::uint8_t>& pool_v) {
    const std::int32_t len = shape_.len[r], d = shape_.head_dim, p = shape_.page_tokens;
    const std::int64_t size = page_bytes(shape_.format, d, p);
    k_[r] = random_elements<float>(std::int64_t{len} * d, shape_.seed + 100 + r, shape_.deviation);
    v_[r] = random_elements<float>(std::int64_t{len} * d, shape_.seed + 10000 + r, shape_.deviation);
    k_scale_.push_back(0.01F + 0.003F * static_cast<float>(r)), v_scale_.push_back(0.02F - 0.001F * static_cast<float>(r));
    const std::int32_t packed = is_kivi(shape_.format) ? kivi_packed(shape_.format, len, kv_.residual) : len;
    for (std::int32_t i = 0; i < packed; i += p) {
      const std::int64_t at = page_[static_cast<std::size_t>(page_begin_[r] + i / p)] * size;
      const HostPage page{shape_.format, d, p, pool_k.data() + at, pool_v.data() + at, k_scale_.back(), v_scale_.back()};
      const std::int32_t tokens = std::min(p, packed - i);
      float* const k = k_[r].data() + std::int64_t{i} * d;
      float* const v = v_[r].data() + std::int64_t{i} * d;
      pack_page(page, k, v, tokens);
      unpack_page(page, tokens, k, v);
    }
    fill_window(r, packed);
  }
  void fill_window(std::size_t r, std::int32_t packed) {
    const std::int32_t capacity = residual_capacity(shape_.format, kv_.residual), d = shape_.head_dim;
    for (std::int32_t i = packed; i < shape_.len[r]; ++i)
      for (std::int32_t c = 0; c < d; ++c) {
        const auto from = static_cast<std::size_t>(std::int64_t{i} * d + c);
        const auto to = static_cast<std::size_t>((static_cast<std::int64_t>(r) * capacity + i % capacity) * d + c);
        window_k_[to] = bits_of_number(shape_.type, k_[r][from]), k_[r][from] = number_of_bits(shape_.type, window_k_[to]);
        window_v_[to] = bits_of_number(shape_.type, v_[r][from]), v_[r][from] = number_of_bits(shape_.type, window_v_[to]);
      }
  }

  CacheShape shape_;
  std::vector<std::int64_t> first_;
  std::vector<std::int32_t> page_begin_, page_;
  std::vector<std::vector<float>> k_, v_;
  std::vector<float> q_, k_scale_, v_scale_;
  std::vector<std::uint16_t> window_k_, window_v_;
  PagedKv kv_;
  DeviceBuffer<std::uint8_t> device_k_, device_v_;
  DeviceBuffer<std::uint16_t> device_q_, device_window_k_, device_window_v_;
  DeviceBuffer<std::int32_t> device_len_, device_page_begin_, device_page_;
  DeviceBuffer<std::int64_t> device_first_;
  DeviceBuffer<float> device_k_scale_, device_v_scale_;
};
using DecodeOutputs = PagedCache::Outputs;

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
      EXPECT_TRUE(all_near(o.log_sum.to_host(), reference.log_sum, 1e-3, 1e-5, true));
      return o.read_out();
    });
    EXPECT_TRUE(all_near(out, reference.out, tolerance, tolerance));
  }
};

// Probabilities and results are rounded to bf16 (2^-9 of each) or fp16 (2^-12); errors of products of random sign mostly cancel.
constexpr double kBf16Error = 0x1p-7, kF16Error = 0x1p-10;

TEST_F(AttentionDecodeCuda, EqualsCpuVersion) {
  for (const std::int32_t head_dim : {64, 96, 128, 256}) {
    check({KvFormat::kBf16, ElementType::kBf16, head_dim, 4, 2, 16, {0, 1, 15, 16, 17, 70}}, kBf16Error);
    check({KvFormat::kF16, ElementType::kF16, head_dim, 16, 1, 32, {33, 150}}, kF16Error);
  }
  for (const std::int32_t group : {1, 3, 7, 8, 9}) check({KvFormat::kBf16, ElementType::kBf16, 128, group, 1, 64, {100}}, kBf16Error);
  // Queries and probabilities in fp16; values decoded from bytes are rounded to fp16 once more. KIVI's lengths are around what a window
  // keeps: 32 to 95 tokens of int4, 32 to 63 of int2.
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
    EXPECT_LT(relative_error(o.read_out(), cache.reference().out), 0.02) << name_of(format);
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
    EXPECT_TRUE(all_near(o.read_out(), reference.out, kBf16Error, kBf16Error));
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
