#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>
#include <type_traits>

namespace kvlab {

// n values of a trivial type, at first zero. Pages of a large array take memory once they are written.
template <class T>
class ZeroedArray {
  static_assert(std::is_trivially_copyable_v<T> && std::is_trivially_destructible_v<T>);

 public:
  ZeroedArray() = default;
  explicit ZeroedArray(std::size_t n) : data_(take(n * sizeof(T)), Release{n * sizeof(T)}), size_(n) {}

  [[nodiscard]] std::size_t size() const { return size_; }
  [[nodiscard]] const T* begin() const { return data_.get(); }
  [[nodiscard]] const T* end() const { return data_.get() + size_; }
  T& operator[](std::size_t i) { return data_.get()[i]; }
  const T& operator[](std::size_t i) const { return data_.get()[i]; }

 private:
  static constexpr std::size_t kMapped = std::size_t{1} << 16;  // bytes; less is taken from the heap
  static T* take(std::size_t bytes) {
    void* const memory = bytes >= kMapped ? mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
                                          : std::calloc(bytes + 1, 1);
    if (memory == nullptr || memory == MAP_FAILED) throw std::bad_alloc();
    return static_cast<T*>(memory);
  }
  struct Release {
    std::size_t bytes = 0;
    void operator()(T* memory) const {
      if (bytes >= kMapped)
        munmap(memory, bytes);
      else
        std::free(memory);
    }
  };

  std::unique_ptr<T, Release> data_;
  std::size_t size_ = 0;
};

}  // namespace kvlab
