#include <cuda_runtime.h>

#include <algorithm>
#include <string>

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

}  // namespace kvlab
