#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdlib>
#include <new>

#include "base/ceil_div.h"

namespace kvlab {

// Memory for large tables that are read in random order: asks the kernel for 2 MiB pages, since with 4 KiB pages nearly every read also
// misses the table of page addresses. If the kernel has none free, the memory has ordinary pages.
template <class T>
struct HugePageAllocator {
  using value_type = T;
  static constexpr std::size_t kPage = std::size_t{2} << 20;

  HugePageAllocator() = default;
  template <class U>
  HugePageAllocator(const HugePageAllocator<U>&) {}

  T* allocate(std::size_t n) {
    const std::size_t bytes = n * sizeof(T);
    if (bytes < kPage) return static_cast<T*>(::operator new(bytes));
    void* memory = std::aligned_alloc(kPage, round_up(bytes, kPage));
    if (!memory) throw std::bad_alloc();
    madvise(memory, bytes, MADV_HUGEPAGE);
    return static_cast<T*>(memory);
  }
  void deallocate(T* memory, std::size_t n) {
    if (n * sizeof(T) < kPage) {
      ::operator delete(memory);
    } else {
      std::free(memory);
    }
  }
  bool operator==(const HugePageAllocator&) const = default;
};

}  // namespace kvlab
