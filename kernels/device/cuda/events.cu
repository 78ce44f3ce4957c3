#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/device/cuda/check.cuh"
#include "kernels/device/cuda/events.h"

namespace kvlab {

namespace {

struct Held {
  long long cycles, nanoseconds;
};

__device__ __forceinline__ long long global_nanoseconds() {
  unsigned long long ns;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
  return static_cast<long long>(ns);
}

// Bounded in cycles too, in case the global timer stops.
__global__ void hold_kernel(long long nanoseconds, long long most_cycles, Held* held) {
  const long long begin = global_nanoseconds(), first_cycle = clock64();
  Held now{0, 0};
  do {
    now.cycles = clock64() - first_cycle;
    now.nanoseconds = global_nanoseconds() - begin;
  } while (now.nanoseconds < nanoseconds && now.cycles < most_cycles);
  *held = now;
}

__global__ void nothing_kernel() {}

}  // namespace

struct CudaTimer::State {
  cudaEvent_t begin = nullptr, end = nullptr;
  Held* held = nullptr;  // pinned: written by the kernel
};

void CudaTimer::Free::operator()(State* s) const noexcept {
  for (const cudaEvent_t event : {s->begin, s->end})
    if (event != nullptr) cuda::drop(cudaEventDestroy(event));
  cuda::free_pinned(s->held);
  delete s;
}

CudaTimer::CudaTimer() : state_(new State) {
  cuda::check(cudaEventCreate(&state_->begin), "making an event");
  cuda::check(cudaEventCreate(&state_->end), "making an event");
  state_->held = static_cast<Held*>(cuda::allocate_pinned(sizeof(Held)));
  *state_->held = {0, 0};
}

void CudaTimer::hold(double seconds, CudaStream stream) {
  const auto ns = static_cast<long long>(std::clamp(seconds, 0.0, 0.1) * 1e9);
  hold_kernel<<<1, 1, 0, stream>>>(ns, 4 * ns + 1000, state_->held);
  cuda::check(cudaGetLastError(), "kernel hold");
}

void CudaTimer::start(CudaStream stream) { cuda::check(cudaEventRecord(state_->begin, stream), "recording an event"); }
void CudaTimer::stop(CudaStream stream) { cuda::check(cudaEventRecord(state_->end, stream), "recording an event"); }

double CudaTimer::seconds() const {
  float ms = 0;
  cuda::check(cudaEventSynchronize(state_->end), "waiting for an event");
  cuda::check(cudaEventElapsedTime(&ms, state_->begin, state_->end), "time between two events");
  return ms * 1e-3;
}

double CudaTimer::clock_ghz() const {
  const Held& held = *state_->held;  // valid: the event was waited for
  return held.nanoseconds > 0 ? static_cast<double>(held.cycles) / static_cast<double>(held.nanoseconds) : 0;
}

namespace cuda {

void copy_on_device(void* to, const void* from, std::int64_t bytes, CudaStream stream) {
  if (bytes > 0)
    cuda::check(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyDeviceToDevice, stream), "copy on the GPU");
}

void launch_nothing(CudaStream stream) {
  nothing_kernel<<<1, 1, 0, stream>>>();
  cuda::check(cudaGetLastError(), "empty kernel");
}

}  // namespace cuda

namespace {

struct DestroyGraph {
  void operator()(cudaGraph_t g) const noexcept { cuda::drop(cudaGraphDestroy(g)); }
};
using Graph = std::unique_ptr<std::remove_pointer_t<cudaGraph_t>, DestroyGraph>;

// Ends a capture after an exception.
class Capture {
 public:
  explicit Capture(cudaStream_t stream) : stream_(stream) {
    cuda::check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed), "beginning to record a graph");
  }
  ~Capture() {
    if (is_open_) static_cast<void>(end());
  }
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;
  Graph end() {
    is_open_ = false;
    cudaGraph_t graph = nullptr;
    const cudaError_t e = cudaStreamEndCapture(stream_, &graph);
    Graph owner(graph);
    cuda::drop(e);
    if (e != cudaSuccess) owner.reset();
    is_out_of_memory_ = e == cudaErrorMemoryAllocation;
    return owner;
  }
  [[nodiscard]] bool is_out_of_memory() const { return is_out_of_memory_; }

 private:
  cudaStream_t stream_;
  bool is_open_ = true, is_out_of_memory_ = false;
};

}  // namespace

struct CudaGraph::State {
  cudaGraphExec_t graph = nullptr;
  ~State() {
    if (graph != nullptr) cuda::drop(cudaGraphExecDestroy(graph));
  }
};

CudaGraph::CudaGraph(CudaContext& cuda, const std::function<void()>& work) {
  Capture capture(cuda.stream());
  work();
  const Graph graph = capture.end();
  if (capture.is_out_of_memory()) throw GpuMemoryError("recording a graph: out of memory", 0);
  if (graph == nullptr) throw CudaError("recording a graph: something that ran cannot be recorded");
  auto state = std::make_shared<State>();
  cuda::check(cudaGraphInstantiate(&state->graph, graph.get(), 0), "making a graph ready");
  cuda::check(cudaGraphUpload(state->graph, cuda.stream()),
              "copying a graph to the GPU");  // else the first launch, which may lack memory
  state_ = std::move(state);
}

void CudaGraph::launch(CudaContext& cuda) const { cuda::check(cudaGraphLaunch(state_->graph, cuda.stream()), "launching a graph"); }

}  // namespace kvlab
