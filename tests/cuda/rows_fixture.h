#pragma once

#include <bit>
#include <cstdint>

#include "base/ceil_div.h"
#include "kernels/kv_rows.h"
#include "tests/cuda/cuda_fixture.h"

namespace kvlab {

struct RowsShape {
  std::int32_t kv_heads = 1, group = 1, head_dim = 64, page_tokens = 16, num_words = 0;
};

// A ragged batch of random keys, values and ascending positions, twice: in CPU memory as float32 (rounded to T) for the CPU version, in
// device memory as T. Pages are in random order with unused ones between them; slots without a token are NaN.
template <class T>
class RowsFixture {
 public:
  RowsFixture(const RowsShape& shape, const std::vector<std::int32_t>& lengths, std::uint64_t seed, float deviation = 1.0F)
      : shape_(shape), random_(seed), len(lengths), first(lengths.size() + 1, 0) {
    lay_out();
    const std::size_t slots = position.size(), d = static_cast<std::size_t>(shape.head_dim);
    k.assign(slots * d, std::numeric_limits<float>::quiet_NaN());
    v = k;
    words.assign(slots * static_cast<std::size_t>(shape.num_words), 0x7FC00000U);
    const std::vector<T> keys = random_elements<T>(static_cast<std::int64_t>(slots * d), seed + 1, deviation);
    const std::vector<T> values = random_elements<T>(static_cast<std::int64_t>(slots * d), seed + 2, deviation);
    for_each_token([&](std::int32_t, std::int32_t, std::size_t slot) {
      for (std::size_t c = slot * d; c < (slot + 1) * d; ++c) k[c] = to_float(keys[c]), v[c] = to_float(values[c]);
      for (std::int32_t w = 0; w < shape_.num_words; ++w) words[static_cast<std::size_t>(w) * slots + slot] = 0;
    });
    upload();
  }

  // Calls f(row, token, slot in the pool).
  template <class F>
  void for_each_token(F&& f) {
    const KvRows rows = host();
    for (std::int32_t r = 0; r < rows.num_rows; ++r)
      for (std::int32_t i = 0; i < rows.len[r]; ++i) f(r, i, static_cast<std::size_t>(rows.slot(r, i)));
  }

  KvRows host() { return view(k.data(), v.data(), position.data(), words.data(), ElementType::kF32); }
  KvRows device() {
    return view(reinterpret_cast<float*>(device_k_.data()), reinterpret_cast<float*>(device_v_.data()), device_position_.data(),
                device_words_.data(), kElementType<T>);
  }
  KvRows at(bool gpu) { return gpu ? device() : host(); }

  // Copies the host's arrays to device memory.
  void upload() {
    device_k_ = DeviceBuffer<T>(rounded(k)), device_v_ = DeviceBuffer<T>(rounded(v));
    device_position_ = DeviceBuffer<std::int32_t>(position), device_words_ = DeviceBuffer<std::uint32_t>(words);
  }
  // The content of device memory, all slots of the pool.
  [[nodiscard]] std::vector<float> device_keys(const CudaContext& cuda) const { return floats(device_k_.to_host(cuda.stream())); }
  [[nodiscard]] std::vector<float> device_values(const CudaContext& cuda) const { return floats(device_v_.to_host(cuda.stream())); }
  [[nodiscard]] std::vector<std::int32_t> device_positions(const CudaContext& cuda) const {
    return device_position_.to_host(cuda.stream());
  }
  [[nodiscard]] std::vector<std::uint32_t> device_words(const CudaContext& cuda) const { return device_words_.to_host(cuda.stream()); }
  // Words, positions and the bits of keys and values of all slots, in device memory and in CPU memory; NaN is one number.
  [[nodiscard]] std::vector<std::uint32_t> device_bits(const CudaContext& cuda) const {
    return bits_of(device_words(cuda), device_positions(cuda), device_keys(cuda), device_values(cuda));
  }
  [[nodiscard]] std::vector<std::uint32_t> bits() const { return bits_of(words, position, k, v); }

 private:
  static std::vector<std::uint32_t> bits_of(std::vector<std::uint32_t> all, const std::vector<std::int32_t>& positions,
                                            const std::vector<float>& keys, const std::vector<float>& values) {
    all.insert(all.end(), positions.begin(), positions.end());
    for (const std::vector<float>* x : {&keys, &values})
      for (const float f : *x) all.push_back(std::isnan(f) ? 0x7FC00000U : std::bit_cast<std::uint32_t>(f));
    return all;
  }

  static std::vector<T> rounded(const std::vector<float>& x) {
    std::vector<T> y(x.size());
    for (std::size_t i = 0; i < x.size(); ++i) y[i] = from_float<T>(x[i]);
    return y;
  }

  void lay_out() {
    std::int32_t pages = 0;
    for (std::size_t r = 0; r < len.size(); ++r) {
      first[r + 1] = first[r] + len[r];
      page_begin.push_back(pages);
      pages += ceil_div(len[r], shape_.page_tokens);
    }
    std::vector<std::int32_t> all(static_cast<std::size_t>(pages + 3));
    std::iota(all.begin(), all.end(), 0);
    std::shuffle(all.begin(), all.end(), random_);
    page.assign(all.begin(), all.begin() + pages);
    position.assign(all.size() * static_cast<std::size_t>(shape_.page_tokens), std::numeric_limits<std::int32_t>::min());
    const KvRows rows = host();
    for (std::int32_t r = 0; r < rows.num_rows; ++r)
      for (std::int32_t i = 0, at = 0; i < rows.len[r]; ++i) {
        at += static_cast<std::int32_t>(random_() % 4 == 0 ? random_() % 5 : 0);  // some tokens before have left
        position[static_cast<std::size_t>(rows.slot(r, i))] = at++;
      }
  }

  KvRows view(float* keys, float* values, std::int32_t* positions, std::uint32_t* statistics, ElementType type) {
    KvRows kv;
    kv.num_rows = static_cast<std::int32_t>(len.size()), kv.kv_heads = shape_.kv_heads, kv.group = shape_.group;
    kv.head_dim = shape_.head_dim, kv.len = len.data(), kv.first = first.data(), kv.page_begin = page_begin.data(), kv.page = page.data();
    kv.page_tokens = shape_.page_tokens, kv.pool_tokens = static_cast<std::int64_t>(position.size());
    kv.k = keys, kv.v = values, kv.position = positions, kv.words = statistics, kv.num_words = shape_.num_words, kv.type = type;
    return kv;
  }

  RowsShape shape_;
  std::mt19937_64 random_;
  DeviceBuffer<T> device_k_, device_v_;
  DeviceBuffer<std::int32_t> device_position_;
  DeviceBuffer<std::uint32_t> device_words_;

 public:
  std::vector<std::int32_t> len, page_begin, page, position;
  std::vector<std::int64_t> first;
  std::vector<float> k, v;
  std::vector<std::uint32_t> words;
};

// Random queries [count, q_heads, head_dim] of each sequence, the last one at position last[s], twice as above.
class QueriesFixture {
 public:
  QueriesFixture(const std::vector<std::int32_t>& counts, const std::vector<std::int32_t>& last, std::int32_t q_heads,
                 std::int32_t head_dim, std::uint64_t seed, float deviation = 1.0F) {
    for (std::size_t s = 0; s < counts.size(); ++s) {
      data_.push_back(random_elements<float>(static_cast<std::int64_t>(counts[s]) * q_heads * head_dim, seed + s, deviation));
      device_data_.emplace_back(data_.back());
      host_.push_back({nullptr, counts[s], last[s] + 1 - counts[s]});
      device_.push_back({device_data_.back().data(), counts[s], last[s] + 1 - counts[s]});
    }
    for (std::size_t s = 0; s < counts.size(); ++s) host_[s].data = data_[s].data();
  }
  [[nodiscard]] const Queries* host() const { return host_.data(); }
  [[nodiscard]] const Queries* device() const { return device_.data(); }
  [[nodiscard]] const Queries* at(bool gpu) const { return gpu ? device() : host(); }

 private:
  std::vector<std::vector<float>> data_;
  std::vector<DeviceBuffer<float>> device_data_;
  std::vector<Queries> host_, device_;
};

// Arrays of their own per row, and the array of pointers to them that operations take; all of T{} at first.
template <class T>
class RowArrays {
 public:
  explicit RowArrays(const std::vector<std::int64_t>& sizes, T value = T{}) {
    for (const std::int64_t n : sizes) host_.emplace_back(static_cast<std::size_t>(n), value);
    upload();
  }
  T* const* at(bool gpu) {
    if (gpu) return device_pointers_.data();
    host_pointers_.clear();
    for (std::vector<T>& x : host_) host_pointers_.push_back(x.data());
    return host_pointers_.data();
  }
  std::vector<T>& row(std::size_t r) { return host_[r]; }
  void upload() {
    device_.clear(), device_pointers_.clear();
    for (const std::vector<T>& x : host_) {
      device_.emplace_back(x);
      device_pointers_.push_back(device_.back().data());
    }
  }
  // The content of device memory, one row after another; and of the host's arrays.
  [[nodiscard]] std::vector<T> device(const CudaContext& cuda) const {
    std::vector<T> all;
    for (const DeviceBuffer<T>& x : device_) {
      const std::vector<T> row = x.to_host(cuda.stream());
      all.insert(all.end(), row.begin(), row.end());
    }
    return all;
  }
  [[nodiscard]] std::vector<T> host() const {
    std::vector<T> all;
    for (const std::vector<T>& x : host_) all.insert(all.end(), x.begin(), x.end());
    return all;
  }

 private:
  std::vector<std::vector<T>> host_;
  std::vector<DeviceBuffer<T>> device_;
  std::vector<T*> host_pointers_, device_pointers_;
};

}  // namespace kvlab
