#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "kernels/device/cuda/memory.h"

namespace kvlab {

// GPU calls run in stream order and throw CudaError; the context outlives the memory.
class TensorMemory {
 public:
  TensorMemory() = default;  // CPU memory
  explicit TensorMemory(CudaContext& cuda) : cuda_(&cuda) {}
  // CPU memory that a GPU also accesses (PageCopy).
  static TensorMemory pinned() {
    TensorMemory memory;
    memory.is_pinned_ = true;
    return memory;
  }
  [[nodiscard]] CudaContext* cuda() const { return cuda_; }  // null: CPU memory
  [[nodiscard]] bool on_host() const { return cuda_ == nullptr; }

  // Aligned to 64 bytes, not initialised; free() takes the same `bytes`.
  [[nodiscard]] void* allocate(std::int64_t bytes) const;
  void free(void* p, std::int64_t bytes) const noexcept;
  // Ranges do not overlap.
  void copy(void* to, const void* from, std::int64_t bytes) const;
  void copy_ranges(std::span<const cuda::CopyRange> ranges) const;
  void from_host(void* to, const void* host, std::int64_t bytes) const;
  // Waits for the stream.
  template <class T>
  [[nodiscard]] std::vector<T> to_host(const T* from, std::int64_t n) const {
    std::vector<T> host(static_cast<std::size_t>(n));
    read(host.data(), from, n * std::int64_t{sizeof(T)});
    return host;
  }
  void fill(void* to, int byte, std::int64_t bytes) const;

 private:
  void read(void* host, const void* from, std::int64_t bytes) const;
  CudaContext* cuda_ = nullptr;
  bool is_pinned_ = false;
};

// Vector-like; T is trivial.
template <class T>
class TensorArray {
 public:
  TensorArray() = default;
  explicit TensorArray(TensorMemory memory) : memory_(memory) {}
  TensorArray(const TensorArray& o) : memory_(o.memory_) { append(o.data_, o.size_); }
  TensorArray(TensorArray&& o) noexcept
      : memory_(o.memory_),
        data_(std::exchange(o.data_, nullptr)),
        size_(std::exchange(o.size_, 0)),
        capacity_(std::exchange(o.capacity_, 0)) {}
  TensorArray& operator=(TensorArray o) noexcept {
    std::swap(memory_, o.memory_), std::swap(data_, o.data_), std::swap(size_, o.size_), std::swap(capacity_, o.capacity_);
    return *this;
  }
  ~TensorArray() { release(); }

  [[nodiscard]] T* data() const { return data_; }
  [[nodiscard]] std::int64_t size() const { return size_; }
  [[nodiscard]] std::int64_t capacity() const { return capacity_; }
  [[nodiscard]] const TensorMemory& memory() const { return memory_; }

  // Becomes empty if the memory differs.
  void settle_in(TensorMemory memory) {
    if (memory.cuda() == memory_.cuda()) return;
    release();
    memory_ = memory;
  }
  // Elements are there on return, or for later launches.
  void move_to(TensorMemory memory) {
    const std::vector<T> all = on_host();
    TensorArray there(memory);
    there.append_from_host(all.data(), size_);
    *this = std::move(there);
  }
  // New elements are not initialised.
  void resize(std::int64_t n) {
    if (n > capacity_) reserve(std::max(n, capacity_ + capacity_ / 2));
    size_ = n;
  }
  void resize(std::int64_t n, T value) {
    const std::int64_t old = size_;
    resize(n);
    if (n > old) assign(old, n - old, value);
  }
  void assign(std::int64_t begin, std::int64_t n, T value) {
    const std::vector<T> values(static_cast<std::size_t>(n), value);
    memory_.from_host(data_ + begin, values.data(), n * kBytes);
  }
  void append(const T* there, std::int64_t n) {
    resize(size_ + n);
    memory_.copy(data_ + size_ - n, there, n * kBytes);
  }
  void append_from_host(const T* host, std::int64_t n) {
    resize(size_ + n);
    memory_.from_host(data_ + size_ - n, host, n * kBytes);
  }
  void drop_front(std::int64_t n) {
    if (n == 0) return;
    TensorArray rest(memory_);
    rest.reserve(capacity_);
    rest.append(data_ + n, size_ - n);
    *this = std::move(rest);
  }
  void reserve(std::int64_t n) {
    if (n <= capacity_) return;
    T* const wider = static_cast<T*>(memory_.allocate(n * kBytes));
    const std::int64_t size = size_;
    memory_.copy(wider, data_, size * kBytes);
    release();
    data_ = wider, size_ = size, capacity_ = n;
  }
  [[nodiscard]] std::vector<T> on_host() const { return memory_.to_host(data_, size_); }

 private:
  static constexpr std::int64_t kBytes = sizeof(T);
  void release() noexcept {
    if (data_ != nullptr) memory_.free(data_, capacity_ * kBytes);
    data_ = nullptr, size_ = capacity_ = 0;
  }

  TensorMemory memory_;
  T* data_ = nullptr;
  std::int64_t size_ = 0, capacity_ = 0;
};

}  // namespace kvlab
