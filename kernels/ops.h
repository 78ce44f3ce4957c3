#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

namespace kvlab {

class CudaContext;

// As logged and priced.
struct OpCall {
  std::string_view op;       // its file's name
  std::int64_t rows = 0;     // sequence x KV head
  std::int64_t tokens = 0;   // cached tokens read
  std::int64_t outputs = 0;  // tokens (or pages, clusters) written
  std::int64_t bytes = 0;    // moved through memory
  std::int64_t flops = 0;
  std::int64_t shared_bytes = 0;  // weights, read once per batch
  friend bool operator==(const OpCall&, const OpCall&) = default;
};

// Source of data-dependent counts.
class CountSource {
 public:
  virtual ~CountSource() = default;
  // Later calls belong to `step`, from 0; prefill chunks are steps.
  virtual void begin_step(std::int64_t /*step*/) {}
  // Replaces upper bounds.
  virtual void fill(std::string_view purpose, int layer, std::span<std::int32_t> counts) = 0;
};

// Throws CudaError: no CUDA build or no GPU.
[[noreturn]] void throw_without_cuda();
// Throws CudaError.
[[noreturn]] void refuse_on_gpu(std::string_view op);
// Weak run_cuda() that throws; a linked .cu file replaces it.
#define KVLAB_WITHOUT_CUDA(Op) \
  [[gnu::weak]] void run_cuda(const Op&, CudaContext&) { throw_without_cuda(); }

template <class Op>
concept HasCudaKernel = requires(const Op& op, CudaContext& cuda) {
  run_cuda(op, cuda);
};

class OpClock {
 public:
  virtual ~OpClock() = default;
  virtual void begin() = 0;
  virtual void end(const OpCall& call) = 0;  // the work may still run
};

// Logs and runs operations: structs of raw pointers and shapes in <op>/<op>.h with `OpCall call(const Op&)`, `void run_cpu(const Op&)` and
// optionally `void run_cuda(const Op&, CudaContext&)`. With kShapes nothing runs and data pointers are null. Shapes (lengths, offsets,
// pages, counts to keep) are always in CPU memory. call() reads no data and never tests a data pointer for null.
class Ops {
 public:
  enum class Backend : std::uint8_t { kCpu, kShapes, kCuda };
  explicit Ops(Backend backend) : backend_(backend) {}
  explicit Ops(CudaContext& cuda) : backend_(Backend::kCuda), cuda_(&cuda) {}

  template <class Op>
  void operator()(const Op& op) {
    if (keeps_log_) log_.push_back(call(op));
    if (clock_ != nullptr) clock_->begin();
    run(op);
    if (clock_ != nullptr) clock_->end(call(op));
  }

  [[nodiscard]] bool computes() const { return backend_ != Backend::kShapes; }

  // Uninitialised, valid in the Frame; null with kShapes.
  float* floats(std::int64_t n) { return static_cast<float*>(scratch(n * 4)); }
  std::int32_t* ints(std::int64_t n) { return static_cast<std::int32_t*>(scratch(n * 4)); }
  void zero(float* at, std::int64_t n);  // in stream order; `at` may be null
  // CPU memory.
  std::int32_t* host_ints(std::int64_t n) { return static_cast<std::int32_t*>(allocate(n * 4)); }
  std::int64_t* host_longs(std::int64_t n) { return static_cast<std::int64_t*>(allocate(n * 8)); }

  struct CudaFrame;

  class Frame {
   public:
    explicit Frame(Ops& ops);
    ~Frame();
    Frame(const Frame&) = delete;
    Frame& operator=(const Frame&) = delete;

   private:
    Ops& ops_;
    std::size_t chunk_, used_;
    std::unique_ptr<CudaFrame> cuda_;
  };

  // Records final counts; on shapes replaces the bounds.
  void settle(std::string_view purpose, int layer, std::span<std::int32_t> counts) {
    if (counts_ != nullptr) counts_->fill(purpose, layer, counts);
  }
  void take_counts_from(CountSource* source) { counts_ = source; }

  void keep_log(bool keep) { keeps_log_ = keep; }
  [[nodiscard]] const std::vector<OpCall>& log() const { return log_; }
  void clear_log() { log_.clear(); }

  void time_with(OpClock* clock) { clock_ = clock; }  // null: not timed
  // f() on the CPU, on arrays in its memory.
  template <class F>
  void timed(const OpCall& call, F&& f, bool logs = false) {
    if (logs && keeps_log_) log_.push_back(call);
    if (clock_ != nullptr) clock_->begin();
    f();
    if (clock_ != nullptr) clock_->end(call);
  }

 private:
  template <class Op>
  void run(const Op& op) {
    if (backend_ == Backend::kCpu) run_cpu(op);
    if (backend_ != Backend::kCuda) return;
    if constexpr (HasCudaKernel<Op>)
      run_cuda(op, *cuda_);
    else
      refuse_on_gpu(call(op).op);
  }

  void* scratch(std::int64_t bytes);
  void* allocate(std::int64_t bytes);

  Backend backend_;
  CudaContext* cuda_ = nullptr;
  OpClock* clock_ = nullptr;
  bool keeps_log_ = true;
  std::vector<OpCall> log_;
  std::vector<std::vector<std::uint64_t>> chunks_;
  std::size_t chunk_ = 0, used_ = 0;  // words of chunks_[chunk_]
  CountSource* counts_ = nullptr;
};

}  // namespace kvlab
