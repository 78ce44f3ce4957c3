#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

struct CUstream_st;  // *cudaStream_t
namespace kvlab {

// True in the emulator: uploads have zero padding, so processes write the same bytes.
#if defined(__GNUC__) && !defined(__clang__) && !defined(__CUDACC__)
constexpr bool kClearsPadding = true;
template <class T>
void clear_padding(T& object) {
  if constexpr (std::is_class_v<T>) __builtin_clear_padding(&object);
}
#else
constexpr bool kClearsPadding = false;
template <class T>
void clear_padding(T&) {}
#endif

// f(copy with cleared padding), or f(objects).
template <class T, class F>
void without_padding(const T* objects, std::int64_t n, F&& f) {
  if constexpr (kClearsPadding && std::is_class_v<T>) {
    std::vector<T> copy(objects, objects + n);
    for (T& object : copy) clear_padding(object);
    f(copy.data());
  } else {
    f(objects);
  }
}

using CudaStream = CUstream_st*;

// The message begins with file:line.
class CudaError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};
// In cuda::allocate(): fewer than `bytes` are free; `bytes` 0: other calls.
class GpuMemoryError : public CudaError {
 public:
  GpuMemoryError(const std::string& what, std::int64_t bytes_) : CudaError(what), bytes(bytes_) {}
  std::int64_t bytes;
};

// cuda::allocate_pinned(); freeing GPU memory does not help.
class PinnedMemoryError : public CudaError {
 public:
  using CudaError::CudaError;
};

// kEmulated: kernels run on the CPU, for tests.
enum class CudaBackend : std::uint8_t { kNone, kEmulated, kDevice };
CudaBackend cuda_backend();

struct GpuInfo {
  std::string name;
  std::string driver;  // CUDA driver version, such as 13.0
  int multiprocessors = 0;
  int compute_capability = 0;  // 90 for 9.0
  std::int64_t memory_bytes = 0, l2_bytes = 0, shared_bytes_per_block = 0;
  double clock_ghz = 0, memory_clock_ghz = 0;
};
// 0 without driver, card, or CUDA in the build.
int num_gpus();
std::string why_no_gpu();
GpuInfo gpu_info(int gpu);
void use_gpu(int gpu);  // for the calling thread

// Throw CudaError or its subclasses. Asynchronous copies from pageable memory return once the source may change.
namespace cuda {
void* allocate(std::int64_t bytes);
void free(void* p) noexcept;
void* allocate_pinned(std::int64_t bytes);  // CPU memory that the GPU accesses directly
void free_pinned(void* p) noexcept;
void to_device(void* to, const void* from, std::int64_t bytes, CudaStream stream);
void to_host(void* to, const void* from, std::int64_t bytes, CudaStream stream);
void fill(void* to, int byte, std::int64_t bytes, CudaStream stream);
CudaStream make_stream();
void destroy(CudaStream stream) noexcept;
void synchronize(CudaStream stream);
void synchronize_all();
std::int64_t free_bytes();  // on the current GPU, shared with other programs
// Emulated: fills it with NaN.
void begin_scratch(void* p, std::int64_t bytes);

struct CopyRange {
  void* to = nullptr;
  const void* from = nullptr;
  std::int64_t bytes = 0;
};
// Between GPU and pinned CPU memory, or within the GPU, in no order. Asynchronous.
void copy_ranges(std::span<const CopyRange> ranges, CudaStream stream);
}  // namespace cuda

// Not initialised.
template <class T>
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  explicit DeviceBuffer(std::int64_t n) : data_(static_cast<T*>(cuda::allocate(n * static_cast<std::int64_t>(sizeof(T))))), size_(n) {}
  explicit DeviceBuffer(const std::vector<T>& host) : DeviceBuffer(static_cast<std::int64_t>(host.size())) { copy_from(host); }

  [[nodiscard]] T* data() const { return data_.get(); }
  [[nodiscard]] std::int64_t size() const { return size_; }
  [[nodiscard]] std::int64_t bytes() const { return size_ * static_cast<std::int64_t>(sizeof(T)); }

  void copy_from(const std::vector<T>& host, CudaStream stream) {
    cuda::to_device(data(), host.data(), static_cast<std::int64_t>(host.size() * sizeof(T)), stream);
  }
  // Waits for earlier work; complete on return. Streams do not wait for one another.
  void copy_from(const std::vector<T>& host) {
    cuda::synchronize_all();
    copy_from(host, nullptr);
    cuda::synchronize_all();
  }
  [[nodiscard]] std::vector<T> to_host() const {
    cuda::synchronize_all();
    return to_host(nullptr);
  }
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

// A stream, and scratch memory until the Frame ends.
class CudaContext {
 public:
  explicit CudaContext(int gpu = 0);
  ~CudaContext();
  CudaContext(const CudaContext&) = delete;
  CudaContext& operator=(const CudaContext&) = delete;

  [[nodiscard]] CudaStream stream() const { return stream_; }
  [[nodiscard]] const GpuInfo& gpu() const { return gpu_; }
  void synchronize() const { cuda::synchronize(stream_); }
  // The matrix library's state, from its first use on.
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

  // Aligned to 256 bytes, not initialised.
  template <class T>
  T* scratch(std::int64_t n) {
    return static_cast<T*>(take(n * static_cast<std::int64_t>(sizeof(T))));
  }
  // Null stays null.
  template <class T>
  const T* upload(const T* host, std::int64_t n) {
    if (host == nullptr) return nullptr;
    T* device = scratch<T>(n);
    without_padding(host, n, [&](const T* bytes) { cuda::to_device(device, bytes, n * static_cast<std::int64_t>(sizeof(T)), stream_); });
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
