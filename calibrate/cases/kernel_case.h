#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "calibrate/cases/device.h"

namespace kvlab {

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
