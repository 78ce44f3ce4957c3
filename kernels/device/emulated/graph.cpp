#include "kernels/device/cuda/events.h"
#include "kernels/device/emulated/device_memory.h"
#include "kernels/device/emulated/stream.h"

namespace kvlab {

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
