#pragma once

#include <cstddef>

namespace kvlab::big_memory {

// For tests: notified of big_array.h's arrays.
class Watcher {
 public:
  virtual ~Watcher() = default;
  virtual void taken(void* memory, std::size_t bytes) = 0;
  virtual void given_back(void* memory) = 0;
};

// Null: none. Not thread-safe against allocations.
void watch(Watcher* watcher);

}  // namespace kvlab::big_memory
