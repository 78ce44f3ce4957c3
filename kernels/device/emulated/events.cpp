#include "kernels/device/cuda/events.h"

#include <chrono>
#include <cstring>

#include "kernels/device/emulated/device_memory.h"

namespace kvlab {

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

namespace cuda {

void copy_on_device(void* to, const void* from, std::int64_t bytes, CudaStream) {
  if (bytes <= 0) return;
  emulated::expect_on_gpu(to, "copy on the GPU");
  emulated::expect_on_gpu(from, "copy on the GPU");
  emulated::enqueue([=] { std::memcpy(to, from, static_cast<std::size_t>(bytes)); });
}
void launch_nothing(CudaStream) {}

}  // namespace cuda

struct CudaGraph::State {
  std::vector<emulated::Work> work;
  DeviceBuffer<std::uint8_t> memory{emulated::kGraphBytes};
};

namespace emulated {
namespace {
std::int64_t recorded = 0;
}
std::int64_t recorded_graphs() { return recorded; }
}  // namespace emulated

CudaGraph::CudaGraph(CudaContext&, const std::function<void()>& work) {
  auto state = std::make_shared<State>();
  emulated::Recording recording;
  work();
  state->work = recording.take();
  state_ = std::move(state);
  ++emulated::recorded;
}

void CudaGraph::launch(CudaContext&) const {
  for (const emulated::Work& w : state_->work) emulated::enqueue(w);
}

}  // namespace kvlab
