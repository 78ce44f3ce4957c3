#include "tests/cuda/paged_cache.h"

#include <cmath>

namespace kvlab {

namespace {

std::vector<float> random_floats(std::int64_t n, std::uint64_t seed, float deviation) { return random_elements<float>(n, seed, deviation); }

}  // namespace

PagedCache::PagedCache(const CacheShape& shape) : shape_(shape) {
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

  q_ = random_floats(static_cast<std::int64_t>(rows) * shape.group * shape.head_dim, shape.seed + 7, shape.deviation);
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

void PagedCache::fill_row(std::size_t r, std::vector<std::uint8_t>& pool_k, std::vector<std::uint8_t>& pool_v) {
  const std::int32_t len = shape_.len[r], d = shape_.head_dim, p = shape_.page_tokens;
  const std::int64_t size = page_bytes(shape_.format, d, p);
  k_[r] = random_floats(std::int64_t{len} * d, shape_.seed + 100 + r, shape_.deviation);
  v_[r] = random_floats(std::int64_t{len} * d, shape_.seed + 10000 + r, shape_.deviation);
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

void PagedCache::fill_window(std::size_t r, std::int32_t packed) {
  const std::int32_t capacity = residual_capacity(shape_.format, kv_.residual), d = shape_.head_dim;
  for (std::int32_t i = packed; i < shape_.len[r]; ++i)
    for (std::int32_t c = 0; c < d; ++c) {
      const auto from = static_cast<std::size_t>(std::int64_t{i} * d + c);
      const auto to = static_cast<std::size_t>((static_cast<std::int64_t>(r) * capacity + i % capacity) * d + c);
      window_k_[to] = bits_of_number(shape_.type, k_[r][from]), k_[r][from] = number_of_bits(shape_.type, window_k_[to]);
      window_v_[to] = bits_of_number(shape_.type, v_[r][from]), v_[r][from] = number_of_bits(shape_.type, window_v_[to]);
    }
}

DecodeReference PagedCache::reference() const {
  DecodeReference ref;
  ref.column_sum.assign(static_cast<std::size_t>(total()), 0.0F);
  const auto d = static_cast<std::size_t>(shape_.head_dim);
  for (std::size_t r = 0; r < shape_.len.size(); ++r)
    for (std::size_t h = 0; h < static_cast<std::size_t>(shape_.group); ++h) {
      const float* const q = q_.data() + (r * static_cast<std::size_t>(shape_.group) + h) * d;
      const auto len = static_cast<std::size_t>(shape_.len[r]);
      std::vector<double> p(len);
      double top = -INFINITY, sum = 0;
      for (std::size_t i = 0; i < len; ++i) {
        for (std::size_t c = 0; c < d; ++c) p[i] += static_cast<double>(q[c]) * static_cast<double>(k_[r][i * d + c]);
        p[i] /= std::sqrt(static_cast<double>(d));
        top = std::max(top, p[i]);
      }
      for (double& x : p) x = std::exp(x - top), sum += x;
      std::vector<double> out(d);
      for (std::size_t i = 0; i < len; ++i) {
        const double x = p[i] / sum;
        for (std::size_t c = 0; c < d; ++c) out[c] += x * static_cast<double>(v_[r][i * d + c]);
        ref.column_sum[static_cast<std::size_t>(first_[r]) + i] += static_cast<float>(x);
        ref.probabilities.push_back(static_cast<float>(x));
      }
      for (const double x : out) ref.out.push_back(static_cast<float>(x));
      ref.log_sum.push_back(static_cast<float>(std::log(sum) + top));
    }
  return ref;
}

PagedDecode PagedCache::call(DecodeOutputs& o) const {
  PagedDecode a;
  a.kv = kv_, a.q = device_q_.data(), a.out = o.out.data(), a.log_sum = o.log_sum.data(), a.first = device_first_.data();
  a.q_heads = shape_.kv_heads * shape_.group, a.out_type = shape_.type, a.kv_tokens = total();
  for (const std::int32_t len : shape_.len) a.longest = std::max(a.longest, len);
  return a;
}

std::vector<float> DecodeOutputs::read_out(ElementType type) const {
  std::vector<float> x;
  for (const std::uint16_t bits : out.to_host()) x.push_back(number_of_bits(type, bits));
  return x;
}

}  // namespace kvlab
