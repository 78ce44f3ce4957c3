#pragma once

#include <cstddef>
#include <utility>

namespace kvlab {

// Large pages if available, reused for equal sizes. Idle plus used memory never exceeds the peak of used memory.
namespace big_memory {
void* take(std::size_t bytes);
void give_back(void* memory, std::size_t bytes);
std::size_t idle_bytes();

// For tests: notified of big_array.h's arrays.
class Watcher {
 public:
  virtual ~Watcher() = default;
  virtual void taken(void* memory, std::size_t bytes) = 0;
  virtual void given_back(void* memory) = 0;
};

// Null: none. Not thread-safe against allocations.
void watch(Watcher* watcher);
}  // namespace big_memory

// Uninitialised, of a trivial type.
template <class T>
class BigArray {
 public:
  BigArray() = default;
  explicit BigArray(std::size_t n) : data_(n == 0 ? nullptr : static_cast<T*>(big_memory::take(n * sizeof(T)))), size_(n) {}
  BigArray(BigArray&& o) noexcept : data_(std::exchange(o.data_, nullptr)), size_(std::exchange(o.size_, 0)) {}
  BigArray& operator=(BigArray&& o) noexcept {
    std::swap(data_, o.data_);
    std::swap(size_, o.size_);
    return *this;
  }
  ~BigArray() {
    if (data_ != nullptr) big_memory::give_back(data_, size_ * sizeof(T));
  }

  [[nodiscard]] T* data() { return data_; }
  [[nodiscard]] const T* data() const { return data_; }
  [[nodiscard]] std::size_t size() const { return size_; }

 private:
  T* data_ = nullptr;
  std::size_t size_ = 0;
};

// For n values. Replaces a too small `array`, losing its values.
template <class T>
T* room_in(BigArray<T>& array, std::size_t n) {
  if (array.size() < n) array = BigArray<T>(n);
  return array.data();
}

}  // namespace kvlab
