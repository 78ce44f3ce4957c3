#include <cuda_runtime.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "kernels/device/cuda/check.cuh"
#include "kernels/device/cuda/launch.cuh"
#include "kernels/device/cuda/memory.h"

namespace kvlab {

CudaBackend cuda_backend() { return CudaBackend::kDevice; }

int num_gpus() {
  int n = 0;
  if (cudaGetDeviceCount(&n) == cudaSuccess) return n;
  static_cast<void>(cudaGetLastError());
  return 0;
}

std::string why_no_gpu() {
  int n = 0;
  const cudaError_t e = cudaGetDeviceCount(&n);
  static_cast<void>(cudaGetLastError());
  if (e != cudaSuccess) return cudaGetErrorString(e);
  return n == 0 ? "no CUDA device" : "";
}

GpuInfo gpu_info(int gpu) {
  cudaDeviceProp p{};
  cuda::check(cudaGetDeviceProperties(&p, gpu), "GPU " + std::to_string(gpu));
  int driver = 0, clock_khz = 0, memory_khz = 0;
  cuda::check(cudaDriverGetVersion(&driver), "driver version");
  cuda::check(cudaDeviceGetAttribute(&clock_khz, cudaDevAttrClockRate, gpu), "clock");
  cuda::check(cudaDeviceGetAttribute(&memory_khz, cudaDevAttrMemoryClockRate, gpu), "memory clock");
  return {p.name,
          std::to_string(driver / 1000) + "." + std::to_string(driver % 1000 / 10),
          p.multiProcessorCount,
          p.major * 10 + p.minor,
          static_cast<std::int64_t>(p.totalGlobalMem),
          p.l2CacheSize,
          static_cast<std::int64_t>(p.sharedMemPerBlockOptin),
          clock_khz * 1e-6,
          memory_khz * 1e-6};
}

void use_gpu(int gpu) { cuda::check(cudaSetDevice(gpu), "GPU " + std::to_string(gpu)); }

namespace cuda {

void* allocate(std::int64_t bytes) {
  void* p = nullptr;
  const cudaError_t e = cudaMalloc(&p, static_cast<std::size_t>(std::max<std::int64_t>(bytes, 1)));
  if (e == cudaErrorMemoryAllocation) {
    static_cast<void>(cudaGetLastError());  // the context continues
    throw GpuMemoryError(std::to_string(bytes) + " more bytes were asked for, " + std::to_string(free_bytes()) + " are free", bytes);
  }
  check(e, "allocating " + std::to_string(bytes) + " bytes on the GPU");
  return p;
}
void free(void* p) noexcept { drop(cudaFree(p)); }
std::int64_t free_bytes() {
  std::size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "asking for the free memory");
  return static_cast<std::int64_t>(free);
}

void* allocate_pinned(std::int64_t bytes) {
  void* p = nullptr;
  const cudaError_t e = cudaHostAlloc(&p, static_cast<std::size_t>(std::max<std::int64_t>(bytes, 1)), cudaHostAllocMapped);
  if (e == cudaErrorMemoryAllocation) {
    static_cast<void>(cudaGetLastError());
    throw PinnedMemoryError(std::to_string(bytes) + " more bytes of pinned host memory were asked for, and could not be had");
  }
  check(e, "allocating " + std::to_string(bytes) + " bytes of pinned memory");
  return p;
}
void free_pinned(void* p) noexcept { drop(cudaFreeHost(p)); }

void to_device(void* to, const void* from, std::int64_t bytes, CudaStream stream) {
  if (bytes > 0) check(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyHostToDevice, stream), "copy to the GPU");
}
void to_host(void* to, const void* from, std::int64_t bytes, CudaStream stream) {
  if (bytes > 0) check(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyDeviceToHost, stream), "copy from the GPU");
}
void fill(void* to, int byte, std::int64_t bytes, CudaStream stream) {
  if (bytes > 0) check(cudaMemsetAsync(to, byte, static_cast<std::size_t>(bytes), stream), "filling memory");
}
CudaStream make_stream() {
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "making a stream");
  return stream;
}
void destroy(CudaStream stream) noexcept { drop(cudaStreamDestroy(stream)); }
void synchronize_all() { check(cudaDeviceSynchronize(), "waiting for the GPU"); }
void begin_scratch(void*, std::int64_t) {}
void synchronize(CudaStream stream) { check(cudaStreamSynchronize(stream), "waiting for the GPU"); }

void allow_shared(const void* kernel, std::size_t bytes) {
  static std::mutex mutex;
  static std::map<std::pair<int, const void*>, std::size_t> allowed;  // per GPU
  int gpu = 0;
  check(cudaGetDevice(&gpu), "asking which GPU is in use");
  const std::lock_guard lock(mutex);
  std::size_t& limit = allowed[{gpu, kernel}];
  if (limit >= bytes) return;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
        "asking for " + std::to_string(bytes) + " bytes of shared memory");
  limit = bytes;
}

void check_launch(const char* name) { check(cudaGetLastError(), std::string("kernel ") + name); }

}  // namespace cuda

}  // namespace kvlab

namespace kvlab::cuda {

namespace {

void copy_singly(std::span<const CopyRange> ranges, CudaStream stream) {
  for (const CopyRange& r : ranges)
    check(cudaMemcpyAsync(r.to, r.from, static_cast<std::size_t>(r.bytes), cudaMemcpyDefault, stream), "copying a page");
}

#if CUDART_VERSION >= 12080
// False if the driver has no batches.
bool copy_batch(std::span<const CopyRange> ranges, CudaStream stream) {
  std::vector<void*> to;
  std::vector<const void*> from;
  std::vector<std::size_t> bytes;
  for (const CopyRange& r : ranges) to.push_back(r.to), from.push_back(r.from), bytes.push_back(static_cast<std::size_t>(r.bytes));
  cudaMemcpyAttributes attributes{};
  attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
  std::size_t first = 0;
#if CUDART_VERSION >= 13000
  const cudaError_t e = cudaMemcpyBatchAsync(to.data(), from.data(), bytes.data(), ranges.size(), &attributes, &first, 1, stream);
#else
  std::size_t failed = 0;
  const cudaError_t e = cudaMemcpyBatchAsync(to.data(), const_cast<void**>(from.data()), bytes.data(), ranges.size(), &attributes, &first,
                                             1, &failed, stream);
#endif
  if (e == cudaErrorNotSupported || e == cudaErrorCallRequiresNewerDriver) {
    static_cast<void>(cudaGetLastError());
    return false;
  }
  check(e, "copying pages");
  return true;
}
#endif

}  // namespace

void copy_ranges(std::span<const CopyRange> ranges, CudaStream stream) {
  if (ranges.empty()) return;
#if CUDART_VERSION >= 12080
  if (ranges.size() > 1 && stream != nullptr && copy_batch(ranges, stream)) return;  // not on the default stream
#endif
  copy_singly(ranges, stream);
}

}  // namespace kvlab::cuda
