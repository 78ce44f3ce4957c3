#include <malloc.h>
#include <sys/mman.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>
#include <string>

#include "base/ceil_div.h"
#include "kernels/device/cuda/memory.h"
#include "kernels/device/emulated/device_memory.h"

namespace kvlab::emulated {

#if defined(KVLAB_SANITIZED)

DeviceAccess::DeviceAccess() {}
DeviceAccess::~DeviceAccess() {}

// Exact size, for the address sanitizer.
void* take_device_memory(std::int64_t bytes) {
  void* p = nullptr;
  if (posix_memalign(&p, 256, static_cast<std::size_t>(bytes)) != 0) return nullptr;
  std::memset(p, 0xFF, static_cast<std::size_t>(bytes));
  return p;
}
std::int64_t give_device_memory(void* p) noexcept {
  const auto bytes = static_cast<std::int64_t>(malloc_usable_size(p));  // exact under this sanitizer
  std::free(p);
  return bytes;
}
std::vector<std::span<unsigned char>> device_memory_in_use() { return {}; }
void* take_pinned_memory(std::int64_t bytes) { return take_device_memory(bytes); }
std::int64_t give_pinned_memory(void* p) noexcept { return give_device_memory(p); }
void expect_on_gpu(const void*, const char*) {}
void expect_on_host(const void*, const char*) {}
void expect_no_host_pointer(const void*, std::size_t, const char*) {}

#else

namespace {

// Checked when the allocation is freed.
constexpr std::size_t kGuard = 256;
constexpr unsigned char kGuardByte = 0xA5;
constexpr std::size_t kAddresses = std::size_t{1} << 36;
constexpr std::size_t kHugePage = std::size_t{2} << 20;  // protection changes fast on few large pages

[[noreturn]] void end(const char* text) {
  static_cast<void>(write(STDERR_FILENO, text, std::strlen(text)));
  std::abort();
}

struct Heap {
  std::mutex mutex;
  unsigned char* begin = nullptr;                   // of the addresses
  std::size_t top = 0;                              // bytes from begin ever used
  int accesses = 0;                                 // in progress
  std::map<std::size_t, std::size_t> given, spare;  // offset -> bytes requested; free bytes

  Heap();
  void allow(int protection) const {
    if (top > 0) mprotect(begin, round_up(top, kHugePage), protection);
  }
  std::size_t find(std::size_t bytes);
  void put_back(std::size_t at, std::size_t bytes);
};

Heap& heap() {
  static Heap& h = *new Heap;  // static objects may free memory after it
  return h;
}

struct sigaction before_us {};

void say_who_touched_it(int signal, siginfo_t* info, void*) {
  const auto* at = static_cast<const unsigned char*>(info->si_addr);
  if (at >= heap().begin && at < heap().begin + kAddresses) {
    constexpr char kText[] = "host code followed a pointer to device memory: on a GPU this ends the program; use a kernel or a copy\n";
    static_cast<void>(write(STDERR_FILENO, kText, sizeof kText - 1));
  }
  sigaction(signal, &before_us, nullptr);  // the repeated access ends the program
}

Heap::Heap() {
  void* p = mmap(nullptr, kAddresses + kHugePage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) end("no addresses for emulated device memory\n");
  begin = reinterpret_cast<unsigned char*>(round_up(reinterpret_cast<std::uintptr_t>(p), kHugePage));
  madvise(begin, kAddresses, MADV_HUGEPAGE);
  struct sigaction ours {};
  ours.sa_sigaction = say_who_touched_it;
  ours.sa_flags = SA_SIGINFO;
  sigaction(SIGSEGV, &ours, &before_us);
}

std::size_t Heap::find(std::size_t bytes) {
  for (auto s = spare.begin(); s != spare.end(); ++s) {
    if (s->second < bytes) continue;
    const auto [at, size] = *s;
    spare.erase(s);
    if (size > bytes) spare.emplace(at + bytes, size - bytes);
    return at;
  }
  const std::size_t at = top;
  if (at + bytes > kAddresses) return kAddresses;
  top += bytes;
  return at;
}

void Heap::put_back(std::size_t at, std::size_t bytes) {
  auto s = spare.emplace(at, bytes).first;
  const auto next = std::next(s);
  if (next != spare.end() && s->first + s->second == next->first) s->second += next->second, spare.erase(next);
  if (s == spare.begin()) return;
  const auto previous = std::prev(s);
  if (previous->first + previous->second == s->first) previous->second += s->second, spare.erase(s);
}

void check_guard(const unsigned char* p, const char* what) {
  for (std::size_t i = 0; i < kGuard; ++i)
    if (p[i] != kGuardByte) end(what);
}

bool is_device_memory(const void* p) { return p >= heap().begin && p < heap().begin + kAddresses; }

struct Pinned {
  std::mutex mutex;
  std::map<std::uintptr_t, std::size_t> given;
};

Pinned& pinned() {
  static Pinned& p = *new Pinned;
  return p;
}

bool is_pinned(std::uintptr_t at) {
  const std::lock_guard lock(pinned().mutex);
  const auto next = pinned().given.upper_bound(at);
  return next != pinned().given.begin() && at < std::prev(next)->first + std::prev(next)->second;
}

bool is_mapped(std::uintptr_t at) {
  unsigned char there = 0;
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  return mincore(reinterpret_cast<void*>(at / page * page), page, &there) == 0;
}

}  // namespace

DeviceAccess::DeviceAccess() {
  Heap& h = heap();
  const std::lock_guard lock(h.mutex);
  if (h.accesses++ == 0) h.allow(PROT_READ | PROT_WRITE);
}
DeviceAccess::~DeviceAccess() {
  Heap& h = heap();
  const std::lock_guard lock(h.mutex);
  if (--h.accesses == 0) h.allow(PROT_NONE);
}

void* take_device_memory(std::int64_t bytes) {
  Heap& h = heap();
  const auto n = static_cast<std::size_t>(bytes);
  const std::size_t whole = round_up(n, kGuard) + 2 * kGuard;
  std::unique_lock lock(h.mutex);
  const std::size_t at = h.find(whole);
  if (at == kAddresses) return nullptr;
  h.given.emplace(at, n);
  if (h.accesses > 0) h.allow(PROT_READ | PROT_WRITE);
  lock.unlock();
  const DeviceAccess access;
  unsigned char* p = h.begin + at;
  std::memset(p, kGuardByte, kGuard);
  std::memset(p + kGuard, 0xFF, n);  // NaN
  std::memset(p + kGuard + n, kGuardByte, whole - kGuard - n);
  return p + kGuard;
}

std::vector<std::span<unsigned char>> device_memory_in_use() {
  Heap& h = heap();
  const std::lock_guard lock(h.mutex);
  std::vector<std::span<unsigned char>> all;
  for (const auto& [at, bytes] : h.given) all.emplace_back(h.begin + at + kGuard, bytes);
  return all;
}

std::int64_t give_device_memory(void* p) noexcept {
  Heap& h = heap();
  auto* const data = static_cast<unsigned char*>(p);
  const DeviceAccess access;
  const std::lock_guard lock(h.mutex);
  const auto mine = h.given.find(static_cast<std::size_t>(data - kGuard - h.begin));
  if (mine == h.given.end()) end("what is freed is not emulated device memory\n");
  const auto [at, bytes] = *mine;
  check_guard(data - kGuard, "emulated device memory was written before an allocation\n");
  check_guard(data + bytes, "emulated device memory was written behind an allocation\n");
  h.given.erase(mine);
  h.put_back(at, round_up(bytes, kGuard) + 2 * kGuard);
  return static_cast<std::int64_t>(bytes);
}

void* take_pinned_memory(std::int64_t bytes) {
  void* p = nullptr;
  if (posix_memalign(&p, 256, static_cast<std::size_t>(bytes)) != 0) return nullptr;
  std::memset(p, 0xFF, static_cast<std::size_t>(bytes));
  const std::lock_guard lock(pinned().mutex);
  pinned().given.emplace(reinterpret_cast<std::uintptr_t>(p), bytes);
  return p;
}
std::int64_t give_pinned_memory(void* p) noexcept {
  const std::lock_guard lock(pinned().mutex);
  const auto mine = pinned().given.find(reinterpret_cast<std::uintptr_t>(p));
  if (mine == pinned().given.end()) end("what is freed is not pinned memory\n");
  const auto bytes = static_cast<std::int64_t>(mine->second);
  pinned().given.erase(mine);
  std::free(p);
  return bytes;
}

void expect_on_gpu(const void* p, const char* what) {
  if (!is_device_memory(p) && !is_pinned(reinterpret_cast<std::uintptr_t>(p)))
    throw CudaError(std::string(what) + ": an address of host memory where the GPU's is needed");
}
void expect_on_host(const void* p, const char* what) {
  if (is_device_memory(p)) throw CudaError(std::string(what) + ": an address of the GPU's memory where host memory is needed");
}

void expect_no_host_pointer(const void* argument, std::size_t bytes, const char* kernel) {
  constexpr std::uintptr_t kLowest = std::uintptr_t{1} << 44, kHighest = std::uintptr_t{1} << 47;  // Linux maps programs and heaps here
  for (std::size_t at = 0; at + sizeof(std::uintptr_t) <= bytes; at += sizeof(std::uintptr_t)) {
    std::uintptr_t word = 0;
    std::memcpy(&word, static_cast<const std::byte*>(argument) + at, sizeof word);
    if (word < kLowest || word >= kHighest || is_device_memory(reinterpret_cast<const void*>(word)) || is_pinned(word)) continue;
    if (is_mapped(word))
      throw CudaError(std::string("kernel ") + kernel + ": was given an address of host memory, by the word at byte " + std::to_string(at) +
                      " of an argument");
  }
}

#endif

}  // namespace kvlab::emulated
