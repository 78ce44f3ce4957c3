#include "kernels/device/cuda/memory.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "kernels/device/cuda/events.h"
#include "kernels/device/emulated/device_memory.h"

namespace kvlab {

CudaBackend cuda_backend() { return CudaBackend::kEmulated; }
int num_gpus() { return 1; }
std::string why_no_gpu() { return ""; }
void use_gpu(int) {}

// An H100 with few multiprocessors: small grids.
GpuInfo gpu_info(int) { return {"emulated", "none", 4, 90, std::int64_t{1} << 34, 50 << 20, 232448, 1, 1}; }

namespace emulated {

namespace {
struct Room {
  std::int64_t limit = std::int64_t{1} << 34, used = 0;
};
Room device, pinned;
std::int64_t made = 0, given = 0, graphs = 0;
std::vector<std::string>* launch_log = nullptr;

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
// The destination is NaN until the copy arrives.
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
}  // namespace

void limit_memory(std::int64_t bytes) { device.limit = bytes; }
void limit_pinned_memory(std::int64_t bytes) { pinned.limit = bytes; }
std::int64_t used_memory() { return device.used; }
std::int64_t allocations() { return made; }
std::int64_t commands() { return given; }
void note_command() { ++given; }
void log_launches(std::vector<std::string>* log) { launch_log = log; }
bool logs_launches() { return launch_log != nullptr; }
void note_launch(const std::string& what) {
  if (launch_log != nullptr) launch_log->push_back(what);
}
std::int64_t recorded_graphs() { return graphs; }

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

}  // namespace emulated

namespace cuda {

std::int64_t free_bytes() { return emulated::device.limit - emulated::device.used; }

void* allocate(std::int64_t bytes) {
  emulated::refuse_in_graph("allocating memory");
  if (bytes > free_bytes())
    throw GpuMemoryError(std::to_string(bytes) + " more bytes were asked for, " + std::to_string(free_bytes()) + " are free", bytes);
  void* p = emulated::take_device_memory(bytes);
  if (p == nullptr) throw CudaError("out of emulated device memory");
  emulated::device.used += bytes;
  ++emulated::made;
  return p;
}
void free(void* p) noexcept {
  if (p != nullptr) emulated::device.used -= emulated::give_device_memory(p);
}

void* allocate_pinned(std::int64_t bytes) {
  emulated::Room& room = emulated::pinned;
  void* p = bytes > room.limit - room.used ? nullptr : emulated::take_pinned_memory(std::max<std::int64_t>(bytes, 1));
  if (p == nullptr)
    throw PinnedMemoryError(std::to_string(bytes) + " more bytes of pinned host memory were asked for, and could not be had");
  room.used += std::max<std::int64_t>(bytes, 1);
  ++emulated::made;
  return p;
}
void free_pinned(void* p) noexcept {
  if (p != nullptr) emulated::pinned.used -= emulated::give_pinned_memory(p);
}

void to_device(void* to, const void* from, std::int64_t bytes, CudaStream) {
  if (bytes <= 0) return;
  emulated::refuse_in_graph("a copy from the host");
  emulated::expect_on_gpu(to, "copy to the GPU");
  emulated::expect_on_host(from, "copy to the GPU");
  emulated::note_command();
  const emulated::DeviceAccess access;
  std::memcpy(to, from, static_cast<std::size_t>(bytes));
}
void to_host(void* to, const void* from, std::int64_t bytes, CudaStream stream) {
  if (bytes <= 0) return;
  emulated::refuse_in_graph("a copy to the host");
  emulated::expect_on_host(to, "copy from the GPU");
  emulated::expect_on_gpu(from, "copy from the GPU");
  emulated::note_command();
  emulated::copy_late(to, from, bytes, stream);
}
void fill(void* to, int byte, std::int64_t bytes, CudaStream) {
  if (bytes <= 0) return;
  emulated::expect_on_gpu(to, "filling memory");
  emulated::enqueue([=] { std::memset(to, byte, static_cast<std::size_t>(bytes)); });
}
void copy_ranges(std::span<const CopyRange> ranges, CudaStream) {
  for (const CopyRange& r : ranges) {
    emulated::expect_on_gpu(r.to, "copying ranges");
    emulated::expect_on_gpu(r.from, "copying ranges");
  }
  emulated::enqueue([copies = std::vector(ranges.begin(), ranges.end())] {
    for (const CopyRange& r : copies) std::memcpy(r.to, r.from, static_cast<std::size_t>(r.bytes));
  });
}
void begin_scratch(void* p, std::int64_t bytes) {
  const emulated::DeviceAccess access;
  std::memset(p, 0xFF, static_cast<std::size_t>(bytes));
}
void copy_on_device(void* to, const void* from, std::int64_t bytes, CudaStream) {
  if (bytes <= 0) return;
  emulated::expect_on_gpu(to, "copy on the GPU");
  emulated::expect_on_gpu(from, "copy on the GPU");
  emulated::enqueue([=] { std::memcpy(to, from, static_cast<std::size_t>(bytes)); });
}
void launch_nothing(CudaStream) {}

// Compared, never dereferenced.
CudaStream make_stream() {
  const std::lock_guard lock(emulated::mutex);
  return reinterpret_cast<CudaStream>(++emulated::streams);  // NOLINT(performance-no-int-to-ptr)
}
void destroy(CudaStream stream) noexcept {
  const std::lock_guard lock(emulated::mutex);
  emulated::late.erase(stream);
}
void synchronize(CudaStream stream) {
  emulated::refuse_in_graph("waiting for the GPU");
  const std::lock_guard lock(emulated::mutex);
  const auto mine = emulated::late.find(stream);
  if (mine != emulated::late.end()) emulated::deliver(mine->second);
}
void synchronize_all() {
  emulated::refuse_in_graph("waiting for the GPU");
  const std::lock_guard lock(emulated::mutex);
  for (auto& [stream, copies] : emulated::late) emulated::deliver(copies);
}

}  // namespace cuda

struct CudaTimer::State {
  std::chrono::steady_clock::time_point begin, end;
};

void CudaTimer::Free::operator()(State* s) const noexcept { delete s; }
CudaTimer::CudaTimer() : state_(new State) {}
void CudaTimer::hold(double, CudaStream) {}
void CudaTimer::start(CudaStream) { state_->begin = std::chrono::steady_clock::now(); }
void CudaTimer::stop(CudaStream) { state_->end = std::chrono::steady_clock::now(); }
double CudaTimer::seconds() const { return std::chrono::duration<double>(state_->end - state_->begin).count(); }
double CudaTimer::clock_ghz() const { return 0; }

struct CudaGraph::State {
  std::vector<emulated::Work> work;
  DeviceBuffer<std::uint8_t> memory{emulated::kGraphBytes};
};

CudaGraph::CudaGraph(CudaContext&, const std::function<void()>& work) {
  auto state = std::make_shared<State>();
  emulated::Recording recording;
  work();
  state->work = recording.take();
  state_ = std::move(state);
  ++emulated::graphs;
}

void CudaGraph::launch(CudaContext&) const {
  for (const emulated::Work& w : state_->work) emulated::enqueue(w);
}

}  // namespace kvlab
