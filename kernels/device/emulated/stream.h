#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "kernels/device/cuda/memory.h"

// Copies to CPU memory arrive when the stream is waited for; other work runs at once.
namespace kvlab::emulated {

using Work = std::function<void()>;

// Records `work` if this thread records a graph.
void enqueue(Work work);

// Records this thread's work during its lifetime.
class Recording {
 public:
  Recording();
  ~Recording();
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;
  [[nodiscard]] std::vector<Work> take();
};

// Throws CudaError while a graph is recorded.
void refuse_in_graph(const char* what);

CudaStream new_stream();
void end_stream(CudaStream stream);
// The destination is NaN until the copy arrives.
void copy_late(void* to, const void* from, std::int64_t bytes, CudaStream stream);
void arrive(CudaStream stream);
void arrive_all();

}  // namespace kvlab::emulated
