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

// How often a case's operands are laid out in memory. Calls go through the copies in turn, so that the calls between evict from the cache
// what one call reads.
struct Rotation {
  std::int64_t bytes = 0;  // the copies together are about so large; 0: one copy, found in the cache where it fits
  std::int64_t most_copies = 1 << 13;
  // Not 0: activations have copies of their own, together about so large. In a step every layer writes and reads the same ones.
  std::int64_t activation_bytes = 0;
  SharedNumbers* shared = nullptr;  // has the numbers of what is not an activation; null: every case has its own
};
// Three times the last-level cache: cold. On a CPU at most 512 MiB, which evicts most of a larger cache.
Rotation cold_rotation(const TimedDevice& device);

// An operation with its operands in memory, ready to be run and timed.
class PreparedCase {
 public:
  virtual ~PreparedCase() = default;
  virtual void run(std::int64_t call) = 0;  // on copy call % copies(); asynchronous on a GPU
  [[nodiscard]] virtual std::int64_t copies() const = 0;
  // Compares one run with a reference, in float64 and at sampled places where the whole would take long. A wrong case is not timed.
  virtual bool matches() = 0;
  // Work of one call, by the formulas beside the operation.
  [[nodiscard]] virtual std::int64_t bytes() const = 0;
  [[nodiscard]] virtual std::int64_t flops() const = 0;
  // Counts of a policy's operation: rows, tokens read and written, as kernels/ops.h logs them.
  struct Counts {
    std::int64_t rows = 0, tokens = 0, outputs = 0;
    std::string_view op = {};  // as OpCall names it
  };
  [[nodiscard]] virtual Counts counts() const { return {}; }
};

// The axes of a shape, and the letters for each in a case's name.
using Axes = std::vector<std::pair<std::string, std::string>>;

// One operation in one format on one kind of device, for any shape.
struct KernelFamily {
  std::string op;      // as Operation::cpu or gpu names it, or a case of kernel_bench alone
  std::string format;  // of its operands: f32, bf16, ...
  DeviceKind device = DeviceKind::kCpu;
  Axes axes;
  std::vector<Shape> shapes;  // that kernel_bench times
  std::vector<Shape> small;   // that tests check
  std::function<std::unique_ptr<PreparedCase>(TimedDevice&, const Shape&, const Rotation&)> prepare;

  // decode_attention/bf16/b64_n4096_q32_kv8_d128
  [[nodiscard]] std::string case_name(const Shape& shape) const;
};

// All families, CPU and GPU; those of the GPU can be prepared only where the program has CUDA.
const std::vector<KernelFamily>& kernel_families();
// Null where there is none.
const KernelFamily* find_family(DeviceKind device, const std::string& op, const std::string& format);

}  // namespace kvlab
