#pragma once

#include <algorithm>
#include <numeric>

#include "kernels/attention/attention_decode/attention_decode.h"
#include "kernels/paged_kv.h"
#include "tests/cuda/cuda_fixture.h"

namespace kvlab {

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

// A ragged batch of random keys and values in pages in random order. Slots of pages after a row's tokens are NaN if the format has NaN.
class PagedCache {
 public:
  explicit PagedCache(const CacheShape& shape);
  // Attention in double precision over the decoded pages.
  [[nodiscard]] DecodeReference reference() const;
  [[nodiscard]] PagedDecode call(struct DecodeOutputs& outputs) const;
  [[nodiscard]] const PagedKv& kv() const { return kv_; }
  [[nodiscard]] const CacheShape& shape() const { return shape_; }
  [[nodiscard]] std::int64_t total() const { return first_.back(); }
  [[nodiscard]] std::int64_t rows() const { return static_cast<std::int64_t>(shape_.len.size()); }
  // The decoded row, [len, head_dim].
  [[nodiscard]] const std::vector<float>& keys(std::int64_t row) const { return k_[static_cast<std::size_t>(row)]; }

 private:
  void fill_row(std::size_t r, std::vector<std::uint8_t>& pool_k, std::vector<std::uint8_t>& pool_v);
  void fill_window(std::size_t r, std::int32_t packed);

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

struct DecodeOutputs {
  explicit DecodeOutputs(const PagedCache& cache)
      : out(cache.rows() * cache.shape().group * cache.shape().head_dim),
        log_sum(cache.rows() * cache.shape().group),
        column_sum(cache.total()),
        probabilities(cache.total() * cache.shape().group) {}
  [[nodiscard]] std::vector<float> read_out(ElementType type) const;

  DeviceBuffer<std::uint16_t> out;
  DeviceBuffer<float> log_sum, column_sum, probabilities;
};

// A number of 16 bits of the type, and back.
inline std::uint16_t bits_of_number(ElementType type, float x) {
  return type == ElementType::kF16 ? from_float<f16>(x).bits : from_float<bf16>(x).bits;
}
inline float number_of_bits(ElementType type, std::uint16_t bits) {
  return type == ElementType::kF16 ? to_float(f16{bits}) : to_float(bf16{bits});
}

}  // namespace kvlab
