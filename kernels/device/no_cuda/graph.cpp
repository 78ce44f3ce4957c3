#include "kernels/device/cuda/graph.h"

namespace kvlab {

struct CudaGraph::State {};
CudaGraph::CudaGraph(CudaContext&, const std::function<void()>&) { throw CudaError(why_no_gpu()); }
void CudaGraph::launch(CudaContext&) const { throw CudaError(why_no_gpu()); }

}  // namespace kvlab
