#pragma once

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

struct CUstream_st;  // the type that cudaStream_t points to

namespace kvlab {

using CudaStream = CUstream_st*;

// An error of the GPU or its driver, or a call in a build without CUDA; the message begins with the file:line that detected it.
class CudaError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// How this program was built: with nvcc (kernels/device/cuda), with kernels that run on the CPU thread by thread (kernels/device/emulated,
// tests only), or without any (kernels/device/no_cuda).
enum class CudaBackend : std::uint8_t { kNone, kEmulated, kDevice };
CudaBackend cuda_backend();

struct GpuInfo {
  std::string name;
  std::string driver;  // version of the CUDA driver, such as 13.0
  int multiprocessors = 0;
  int compute_capability = 0;  // 90 for 9.0
  std::int64_t memory_bytes = 0, l2_bytes = 0, shared_bytes_per_block = 0;
  double clock_ghz = 0, memory_clock_ghz = 0;
};
// GPUs that this program can use: 0 without a driver, without a card, or without CUDA in the build (why_no_gpu() says which).
int num_gpus();
std::string why_no_gpu();
GpuInfo gpu_info(int gpu);
void use_gpu(int gpu);  // for the calling thread

// Device memory and copies. All throw CudaError or its subclasses in gpu_memory.h. Asynchronous copies from pageable memory return once the
// source may change.
namespace cuda {
void* allocate(std::int64_t bytes);
void free(void* p) noexcept;
void* allocate_pinned(std::int64_t bytes);  // CPU memory that the GPU reads and writes directly
void free_pinned(void* p) noexcept;
void to_device(void* to, const void* from, std::int64_t bytes, CudaStream stream);
void to_host(void* to, const void* from, std::int64_t bytes, CudaStream stream);
void fill(void* to, int byte, std::int64_t bytes, CudaStream stream);
CudaStream make_stream();
void destroy(CudaStream stream) noexcept;
void synchronize(CudaStream stream);
void synchronize_all();  // waits for all streams
}  // namespace cuda

// An array of T in device memory, not initialised.
template <class T>
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  explicit DeviceBuffer(std::int64_t n) : data_(static_cast<T*>(cuda::allocate(n * static_cast<std::int64_t>(sizeof(T))))), size_(n) {}
  // Holds a copy of `host`.
  explicit DeviceBuffer(const std::vector<T>& host) : DeviceBuffer(static_cast<std::int64_t>(host.size())) { copy_from(host); }

  [[nodiscard]] T* data() const { return data_.get(); }
  [[nodiscard]] std::int64_t size() const { return size_; }
  [[nodiscard]] std::int64_t bytes() const { return size_ * static_cast<std::int64_t>(sizeof(T)); }

  void copy_from(const std::vector<T>& host, CudaStream stream) {
    cuda::to_device(data(), host.data(), static_cast<std::int64_t>(host.size() * sizeof(T)), stream);
  }
  // Without a stream: waits for all earlier work and is complete on return. Streams do not wait for one another.
  void copy_from(const std::vector<T>& host) {
    cuda::synchronize_all();
    copy_from(host, nullptr);
    cuda::synchronize_all();
  }
  [[nodiscard]] std::vector<T> to_host() const {
    cuda::synchronize_all();
    return to_host(nullptr);
  }
  // Waits for the stream.
  [[nodiscard]] std::vector<T> to_host(CudaStream stream) const {
    std::vector<T> host(static_cast<std::size_t>(size_));
    cuda::to_host(host.data(), data(), bytes(), stream);
    cuda::synchronize(stream);
    return host;
  }

 private:
  struct Free {
    void operator()(T* p) const noexcept { cuda::free(p); }
  };
  std::unique_ptr<T, Free> data_;
  std::int64_t size_ = 0;
};

// Resources of a launcher beside its operands: the stream that orders all work, and device memory that lives until the launcher's Frame
// ends. Memory is reused in stream order, so a later kernel may get the memory of an earlier one.
class CudaContext {
 public:
  explicit CudaContext(int gpu = 0);
  ~CudaContext();
  CudaContext(const CudaContext&) = delete;
  CudaContext& operator=(const CudaContext&) = delete;

  [[nodiscard]] CudaStream stream() const { return stream_; }
  [[nodiscard]] const GpuInfo& gpu() const { return gpu_; }
  void synchronize() const { cuda::synchronize(stream_); }
  // State of the matrix library for this context (kernels/device/cuda/blas.h); created on first use, destroyed before the stream.
  [[nodiscard]] std::shared_ptr<void>& blas() { return blas_; }

  class Frame {
   public:
    explicit Frame(CudaContext& cuda) : cuda_(cuda), chunk_(cuda.chunk_), used_(cuda.used_) {}
    ~Frame() { cuda_.chunk_ = chunk_, cuda_.used_ = used_; }
    Frame(const Frame&) = delete;
    Frame& operator=(const Frame&) = delete;

   private:
    CudaContext& cuda_;
    std::size_t chunk_;
    std::int64_t used_;
  };

  // Device memory for n of T, aligned to 256 bytes, not initialised.
  template <class T>
  T* scratch(std::int64_t n) {
    return static_cast<T*>(take(n * static_cast<std::int64_t>(sizeof(T))));
  }
  // A copy of a CPU array; null stays null.
  template <class T>
  const T* upload(const T* host, std::int64_t n) {
    if (host == nullptr) return nullptr;
    T* device = scratch<T>(n);
    cuda::to_device(device, host, n * static_cast<std::int64_t>(sizeof(T)), stream_);
    return device;
  }

 private:
  void* take(std::int64_t bytes);

  GpuInfo gpu_;
  CudaStream stream_ = nullptr;
  std::shared_ptr<void> blas_;
  std::vector<DeviceBuffer<std::uint8_t>> chunks_;
  std::size_t chunk_ = 0;
  std::int64_t used_ = 0;  // bytes of chunks_[chunk_]
};

}  // namespace kvlab
