#include "base/big_array.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <mutex>
#include <new>

#include "base/ceil_div.h"

namespace kvlab::big_memory {

namespace {

constexpr std::size_t kLargePage = 2 << 20, kLine = 64;

void* fresh(std::size_t bytes) {
  void* memory = std::aligned_alloc(kLargePage, bytes);
  if (memory == nullptr) throw std::bad_alloc();
  madvise(memory, bytes, MADV_HUGEPAGE);  // optional
  return memory;
}

struct Idle {
  std::mutex mutex;
  std::multimap<std::size_t, void*> blocks;
  std::size_t idle = 0, used = 0, most = 0;

  void shrink_to(std::size_t bytes) {
    while (idle > bytes) {
      const auto last = std::prev(blocks.end());
      idle -= last->first;
      std::free(last->second);
      blocks.erase(last);
    }
  }
};

// Never destroyed: arrays may live until exit.
Idle& memory() {
  static Idle& idle = *new Idle;
  return idle;
}

Watcher* watcher = nullptr;

void* take_unwatched(std::size_t bytes) {
  if (bytes < kLargePage) {
    void* small = std::aligned_alloc(kLine, round_up(bytes, kLine));
    if (small == nullptr) throw std::bad_alloc();
    return small;
  }
  bytes = round_up(bytes, kLargePage);
  Idle& m = memory();
  const std::lock_guard lock(m.mutex);
  void* block = nullptr;
  if (const auto kept = m.blocks.find(bytes); kept != m.blocks.end()) {
    block = kept->second;
    m.blocks.erase(kept);
    m.idle -= bytes;
  }
  m.used += bytes;
  m.most = std::max(m.most, m.used);
  m.shrink_to(m.most - m.used);
  return block != nullptr ? block : fresh(bytes);
}

}  // namespace

void watch(Watcher* w) { watcher = w; }

void* take(std::size_t bytes) {
  void* memory = take_unwatched(bytes);
  if (watcher != nullptr) watcher->taken(memory, bytes);
  return memory;
}

void give_back(void* block, std::size_t bytes) {
  if (watcher != nullptr) watcher->given_back(block);
  if (bytes < kLargePage) return std::free(block);
  bytes = round_up(bytes, kLargePage);
  Idle& m = memory();
  const std::lock_guard lock(m.mutex);
  m.used -= bytes;
  m.idle += bytes;
  m.blocks.emplace(bytes, block);
}

std::size_t idle_bytes() {
  Idle& m = memory();
  const std::lock_guard lock(m.mutex);
  return m.idle;
}

}  // namespace kvlab::big_memory
