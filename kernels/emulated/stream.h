#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "kernels/cuda/memory.h"

// Streams of the emulated GPU: what is enqueued runs at once, but what is copied to the host arrives when the stream is waited for.
namespace kvlab::emulated {

using Work = std::function<void()>;

// Does `work`, or notes it down where this thread records a graph: it keeps its arguments as they are now.
void enqueue(Work work);

// Notes down what is enqueued on this thread, in place of doing it, until it is gone.
class Recording {
 public:
  Recording();
  ~Recording();
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;
  [[nodiscard]] std::vector<Work> take();
};

// Throws CudaError where a graph is being recorded: what a graph cannot contain.
void refuse_in_graph(const char* what);

CudaStream new_stream();
void end_stream(CudaStream stream);
// Until it arrives, the host's memory holds NaN.
void copy_late(void* to, const void* from, std::int64_t bytes, CudaStream stream);
void arrive(CudaStream stream);
void arrive_all();

}  // namespace kvlab::emulated
