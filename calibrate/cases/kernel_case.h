#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/device/cuda/memory.h"

namespace kvlab {

enum class DeviceKind : std::uint8_t { kCpu, kGpu };

// The CPU (run_cpu) or a GPU (run_cuda).
class TimedDevice {
 public:
  virtual ~TimedDevice() = default;
  [[nodiscard]] virtual DeviceKind kind() const = 0;
  [[nodiscard]] virtual std::string name() const = 0;
  [[nodiscard]] virtual std::int64_t cache_bytes() const = 0;  // last level
  [[nodiscard]] virtual std::int64_t memory_bytes() const = 0;
  [[nodiscard]] virtual CudaContext* cuda() { return nullptr; }

  // Aligned to 256 bytes. On a GPU, allocation and copies throw CudaError.
  virtual std::shared_ptr<void> allocate(std::int64_t bytes) = 0;
  virtual void to_device(void* to, const void* from, std::int64_t bytes) = 0;
  virtual void to_host(void* to, const void* from, std::int64_t bytes) = 0;
  virtual void copy(void* to, const void* from, std::int64_t bytes) = 0;  // within the device; a GPU does not wait
  virtual void synchronize() = 0;

  // run(first), ..., run(first + calls - 1) in sequence; a GPU's calls are queued before the first begins.
  struct Sample {
    double seconds = 0;    // of all calls
    double clock_ghz = 0;  // just before; 0: unknown
  };
  virtual Sample time(const std::function<void(std::int64_t)>& run, std::int64_t first, std::int64_t calls) = 0;
};

std::unique_ptr<TimedDevice> make_cpu_device();
std::unique_ptr<TimedDevice> make_gpu_device(int gpu);  // throws CudaError if there is none

class SharedNumbers;

using Shape = std::map<std::string, std::int64_t>;

// Calls rotate through copies of the operands, so that later calls evict what one reads.
struct Rotation {
  std::int64_t bytes = 0;  // of all copies, approximate; 0: one copy
  std::int64_t most_copies = 1 << 13;
  // Nonzero: activations have separate copies of about this size together; all layers of a step share theirs.
  std::int64_t activation_bytes = 0;
  SharedNumbers* shared = nullptr;  // supplies other numbers; null: the case's own
};
// Three times the last-level cache; on a CPU at most 512 MiB.
Rotation cold_rotation(const TimedDevice& device);

// An operation with its operands.
class PreparedCase {
 public:
  virtual ~PreparedCase() = default;
  virtual void run(std::int64_t call) = 0;  // on copy call % copies(); asynchronous on a GPU
  [[nodiscard]] virtual std::int64_t copies() const = 0;
  // Against a float64 reference, at sampled places if large. False: do not time it.
  virtual bool matches() = 0;
  // For one call, by the operation's formulas.
  [[nodiscard]] virtual std::int64_t bytes() const = 0;
  [[nodiscard]] virtual std::int64_t flops() const = 0;
  // As kernels/ops.h logs them for a policy's operation.
  struct Counts {
    std::int64_t rows = 0, tokens = 0, outputs = 0;
    std::string_view op = {};  // as in OpCall
  };
  [[nodiscard]] virtual Counts counts() const { return {}; }
};

// Axis and its letters in case names.
using Axes = std::vector<std::pair<std::string, std::string>>;

struct KernelFamily {
  std::string op;      // Operation::cpu or gpu, or a case only of kernel_bench
  std::string format;  // of operands: f32, bf16, ...
  DeviceKind device = DeviceKind::kCpu;
  Axes axes;
  std::vector<Shape> shapes;  // timed by kernel_bench
  std::vector<Shape> small;   // checked by tests
  std::function<std::unique_ptr<PreparedCase>(TimedDevice&, const Shape&, const Rotation&)> prepare;

  // decode_attention/bf16/b64_n4096_q32_kv8_d128
  [[nodiscard]] std::string case_name(const Shape& shape) const;
};

// A GPU's can only be prepared in a CUDA build.
const std::vector<KernelFamily>& kernel_families();
// Null if none.
const KernelFamily* find_family(DeviceKind device, const std::string& op, const std::string& format);

// One function per file.
void add_model_cases(std::vector<KernelFamily>& families);
void add_attention_cases(std::vector<KernelFamily>& families);
void add_score_cases(std::vector<KernelFamily>& families);
void add_selection_cases(std::vector<KernelFamily>& families);
void add_format_cases(std::vector<KernelFamily>& families);
void add_unpack_cases(std::vector<KernelFamily>& families);
void add_model_cuda_cases(std::vector<KernelFamily>& families);
void add_step_cuda_cases(std::vector<KernelFamily>& families);
void add_attention_cuda_cases(std::vector<KernelFamily>& families);
void add_transfer_cuda_cases(std::vector<KernelFamily>& families);

}  // namespace kvlab
