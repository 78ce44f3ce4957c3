#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

namespace kvlab {

class CudaContext;

// One batched operation as the log keeps it and the cost model prices it. All counts add up over the rows of a batch, so
// calls of one kind in one layer sum to the call of the joint batch.
struct OpCall {
  std::string_view op;       // its name, that of its file
  std::int64_t rows = 0;     // sequence x KV head
  std::int64_t tokens = 0;   // cached tokens read, over all rows
  std::int64_t outputs = 0;  // tokens (or pages, clusters) written, over all rows
  std::int64_t bytes = 0;    // moved through memory
  std::int64_t flops = 0;
  std::int64_t shared_bytes = 0;  // of `bytes`: weights, which a batch moves as often as one of its sequences, once
  friend bool operator==(const OpCall&, const OpCall&) = default;
};

// Source of counts that depend on data. A run that computes records its counts here; a run with shapes only asks for them.
class CountSource {
 public:
  virtual ~CountSource() = default;
  // The calls that follow belong to step `step` of the run, from 0 on; prefill chunks are steps too.
  virtual void begin_step(std::int64_t /*step*/) {}
  // `counts` holds the upper bounds; overwrites them with the counts that the data would give.
  virtual void fill(std::string_view purpose, int layer, std::span<std::int32_t> counts) = 0;
};

// Says how to build with CUDA, or that the machine has no GPU.
[[noreturn]] void throw_without_cuda();
// Throws CudaError: the operation of this name has no CUDA kernel.
[[noreturn]] void refuse_on_gpu(std::string_view op);
// run_cuda(const Op&, CudaContext&) of a program built without CUDA: throws. The definition in the operation's .cu file, where that is
// linked, takes the place of this weak one.
#define KVLAB_WITHOUT_CUDA(Op) \
  [[gnu::weak]] void run_cuda(const Op&, CudaContext&) { throw_without_cuda(); }

template <class Op>
concept HasCudaKernel = requires(const Op& op, CudaContext& cuda) {
  run_cuda(op, cuda);
};

// Takes the times of calls, one after another.
class OpClock {
 public:
  virtual ~OpClock() = default;
  virtual void begin() = 0;
  virtual void end(const OpCall& call) = 0;  // ends the work since begin(); on a GPU it may still be running
};

// Runs the operations of a policy's parts. An operation is a struct of raw pointers and shapes in <op>/<op>.h with two functions,
// `OpCall call(const Op&)` and `void run_cpu(const Op&)`, and, if it has a kernel, `void run_cuda(const Op&, CudaContext&)`. Calling Ops
// logs one entry per batch and runs it on the backend; with kShapes nothing runs and all data pointers are null. On a GPU data pointers are
// device memory; shapes (lengths, offsets, pages, counts to keep) stay in CPU memory. Counts that depend on data pass through settle().
// call() reads no data and never tests a data pointer for null.
class Ops {
 public:
  enum class Backend : std::uint8_t { kCpu, kShapes, kCuda };
  explicit Ops(Backend backend) : backend_(backend) {}
  // Runs kernels on the context's stream; an operation without one throws CudaError by its name.
  explicit Ops(CudaContext& cuda) : backend_(Backend::kCuda), cuda_(&cuda) {}

  template <class Op>
  void operator()(const Op& op) {
    if (keeps_log_) log_.push_back(call(op));
    if (clock_ != nullptr) clock_->begin();
    run(op);
    if (clock_ != nullptr) clock_->end(call(op));
  }

  [[nodiscard]] bool computes() const { return backend_ != Backend::kShapes; }

  // Scratch memory of the current part's call, not initialised; null without a computing backend. Freed by the next Frame's end.
  float* floats(std::int64_t n) { return static_cast<float*>(scratch(n * 4)); }
  std::int32_t* ints(std::int64_t n) { return static_cast<std::int32_t*>(scratch(n * 4)); }
  // Sets n of them to 0, in stream order on a GPU; nothing where `at` is null.
  void zero(float* at, std::int64_t n);
  // Scratch memory for shapes (lengths, offsets): always real memory.
  std::int32_t* host_ints(std::int64_t n) { return static_cast<std::int32_t*>(allocate(n * 4)); }
  std::int64_t* host_longs(std::int64_t n) { return static_cast<std::int64_t*>(allocate(n * 8)); }

  struct CudaFrame;

  // The end of a Frame frees the scratch memory allocated while it lived.
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

  // Counts that depend on data: a computing backend shows its final counts to the recorder; with shapes only `counts` holds bounds, which
  // the source replaces (without a source they remain).
  void settle(std::string_view purpose, int layer, std::span<std::int32_t> counts) {
    if (counts_ != nullptr) counts_->fill(purpose, layer, counts);
  }
  void take_counts_from(CountSource* source) { counts_ = source; }

  void keep_log(bool keep) { keeps_log_ = keep; }
  [[nodiscard]] const std::vector<OpCall>& log() const { return log_; }
  void clear_log() { log_.clear(); }

  // Null: calls are not timed.
  void time_with(OpClock* clock) { clock_ = clock; }
  // Calls f, work for a policy that calls no operation, and times it like an operation of that name.
  template <class F>
  void timed(std::string_view name, F&& f) {
    if (clock_ != nullptr) clock_->begin();
    f();
    if (clock_ != nullptr) clock_->end({name});
  }

 private:
  template <class Op>
  void run(const Op& op) {
    if (backend_ == Backend::kCpu) run_cpu(op);
    if (backend_ == Backend::kCuda) {
      if constexpr (HasCudaKernel<Op>)
        run_cuda(op, *cuda_);
      else
        refuse_on_gpu(call(op).op);
    }
  }

  void* scratch(std::int64_t bytes);
  void* allocate(std::int64_t bytes);

  Backend backend_;
  CudaContext* cuda_ = nullptr;
  OpClock* clock_ = nullptr;
  bool keeps_log_ = true;
  std::vector<OpCall> log_;
  std::deque<std::vector<std::uint64_t>> chunks_;  // addresses stay when more is added
  std::size_t chunk_ = 0, used_ = 0;               // words used in chunks_[chunk_]
  CountSource* counts_ = nullptr;
};

}  // namespace kvlab
