#include <cuda_runtime.h>

#include "kernels/device/cuda/check.cuh"
#include "kernels/device/cuda/graph.h"

namespace kvlab {

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
