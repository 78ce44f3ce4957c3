#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "kernels/device/emulated/device_memory.h"

namespace kvlab::emulated {

namespace {

struct LateCopy {
  void* to = nullptr;
  std::vector<std::byte> bytes;
};

std::mutex mutex;
std::map<CudaStream, std::vector<LateCopy>> late;
std::uintptr_t streams = 0;

thread_local bool is_recording = false;
thread_local std::vector<Work> recorded;

void deliver(std::vector<LateCopy>& copies) {
  for (const LateCopy& c : copies) std::memcpy(c.to, c.bytes.data(), c.bytes.size());
  copies.clear();
}

}  // namespace

void enqueue(Work work) {
  if (is_recording) {
    recorded.push_back(std::move(work));
    return;
  }
  note_command();
  const DeviceAccess access;
  work();
}

Recording::Recording() {
  refuse_in_graph("recording a graph");
  is_recording = true;
}
Recording::~Recording() {
  is_recording = false;
  recorded.clear();
}
std::vector<Work> Recording::take() { return std::exchange(recorded, {}); }

void refuse_in_graph(const char* what) {
  if (is_recording) throw CudaError(std::string(what) + " while a graph is recorded");
}

// Compared, never dereferenced.
CudaStream new_stream() {
  const std::lock_guard lock(mutex);
  return reinterpret_cast<CudaStream>(++streams);  // NOLINT(performance-no-int-to-ptr)
}
void end_stream(CudaStream stream) {
  const std::lock_guard lock(mutex);
  late.erase(stream);
}

void copy_late(void* to, const void* from, std::int64_t bytes, CudaStream stream) {
  const auto n = static_cast<std::size_t>(bytes);
  LateCopy copy{to, std::vector<std::byte>(n)};
  {
    const DeviceAccess access;
    std::memcpy(copy.bytes.data(), from, n);
  }
  std::memset(to, 0xFF, n);
  const std::lock_guard lock(mutex);
  late[stream].push_back(std::move(copy));
}

void arrive(CudaStream stream) {
  const std::lock_guard lock(mutex);
  const auto mine = late.find(stream);
  if (mine != late.end()) deliver(mine->second);
}
void arrive_all() {
  const std::lock_guard lock(mutex);
  for (auto& [stream, copies] : late) deliver(copies);
}

}  // namespace kvlab::emulated
