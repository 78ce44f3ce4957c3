#pragma once

#include <algorithm>
#include <cmath>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "calibrate/cases/buffers.h"
#include "calibrate/cases/kernel_case.h"
#include "kernels/kv_rows.h"
#include "kernels/ops.h"
#include "sim/cost/operations.h"

namespace kvlab {

using Run = std::function<void()>;

template <class Op>
concept HasCpuKernel = requires(const Op& op) {
  run_cpu(op);
};

struct CaseWork {
  std::int64_t bytes = 0, flops = 0;
  PreparedCase::Counts counts;
};

// A family's operation.
template <class Op>
struct OpRecipe {
  ElementType type = ElementType::kF32;
  std::function<Op(Buffers&, const Shape&)> build;                       // of one copy
  std::function<CaseWork(const Op&, const Shape&)> work;                 // of one call
  std::function<bool(TimedDevice&, const Op&, const Run& run)> matches;  // calls run once, before or after reading what it needs
};

template <class Op>
class OpCase final : public PreparedCase {
 public:
  OpCase(TimedDevice& device, const OpRecipe<Op>& recipe, const Shape& shape, const Rotation& rotation)
      : device_(device), recipe_(recipe), pool_(device), shared_(rotation.shared), keeps_apart_(rotation.activation_bytes > 0) {
    const std::int64_t next_read = shared_ != nullptr ? shared_->begin_case() : 0;
    build(shape, 1, 1);
    const auto count = [](const std::deque<Buffers>& first, std::int64_t bytes, std::int64_t most) {
      const std::int64_t each = first.empty() ? 0 : first.front().bytes();
      return each == 0 ? 1 : std::clamp<std::int64_t>((bytes + each / 2) / each, 1, most);
    };
    const std::int64_t own = count(own_, rotation.bytes, rotation.most_copies);
    const std::int64_t activations = count(activations_, rotation.activation_bytes, rotation.most_copies);
    while (copies() < std::max(own, activations)) build(shape, own, activations);
    first_ = next_read / own_bytes();
    work_ = recipe_.work(ops_.front(), shape);
  }
  OpCase(const OpCase&) = delete;
  OpCase& operator=(const OpCase&) = delete;
  ~OpCase() override {
    if (shared_ != nullptr) shared_->stop_reading_at((first_ + calls_) % copies() * own_bytes());
  }

  void run(std::int64_t call) override {
    run_on(ops_[static_cast<std::size_t>((first_ + call) % copies())]);
    calls_ = call + 1;
  }
  [[nodiscard]] std::int64_t copies() const override { return static_cast<std::int64_t>(ops_.size()); }
  bool matches() override {
    return recipe_.matches(device_, ops_.front(), [&] {
      run_on(ops_.front());
      device_.synchronize();
    });
  }
  [[nodiscard]] std::int64_t bytes() const override { return work_.bytes; }
  [[nodiscard]] std::int64_t flops() const override { return work_.flops; }
  [[nodiscard]] Counts counts() const override { return work_.counts; }

 private:
  void run_on(const Op& op) {
    if (device_.cuda() == nullptr) {
      if constexpr (HasCpuKernel<Op>) run_cpu(op);
    } else {
      if constexpr (HasCudaKernel<Op>) run_cuda(op, *device_.cuda());
    }
  }
  [[nodiscard]] std::int64_t own_bytes() const { return std::max<std::int64_t>(1, own_.empty() ? 0 : own_.front().bytes()); }
  // From the next of `own` operand sets and `activations` activation sets.
  void build(const Shape& shape, std::int64_t own, std::int64_t activations) {
    Buffers* const passed = keeps_apart_ ? &next_of(activations_, activations, kOtherSeeds, nullptr) : nullptr;
    Buffers& buffers = next_of(own_, own, 1, shared_);
    if (passed != nullptr) passed->rewind(nullptr);
    buffers.rewind(passed);
    ops_.push_back(recipe_.build(buffers, shape));
  }
  static constexpr std::uint64_t kOtherSeeds = 1 << 20;
  Buffers& next_of(std::deque<Buffers>& all, std::int64_t most, std::uint64_t first_seed, SharedNumbers* shared) {
    const auto i = static_cast<std::size_t>(copies() % most);
    if (i == all.size()) all.emplace_back(device_, pool_, recipe_.type, first_seed + i, shared);
    return all[i];
  }

  TimedDevice& device_;
  OpRecipe<Op> recipe_;
  DevicePool pool_;
  SharedNumbers* shared_;
  bool keeps_apart_;
  std::deque<Buffers> own_, activations_;
  std::vector<Op> ops_;
  std::int64_t first_ = 0, calls_ = 0;  // copy of call 0; calls so far
  CaseWork work_;
};

template <class Op>
auto preparing(OpRecipe<Op> recipe) {
  return [recipe = std::move(recipe)](TimedDevice& device, const Shape& shape, const Rotation& rotation) -> std::unique_ptr<PreparedCase> {
    return std::make_unique<OpCase<Op>>(device, recipe, shape, rotation);
  };
}

// For a policy's operation.
template <class Op>
CaseWork work_of_call(const Op& op, const Shape&) {
  const OpCall c = call(op);
  return {c.bytes, c.flops, {c.rows, c.tokens, c.outputs, c.op}};
}
// For a model's operation.
template <class Op>
CaseWork work_of_shape(const Op& op, const Shape&) {
  return {bytes(shape(op)), flops(shape(op)), {}};
}

// Values of a family's axes, in order.
using ShapeValues = std::vector<std::vector<std::int64_t>>;

inline std::vector<Shape> shapes_of(const Axes& axes, const ShapeValues& all) {
  std::vector<Shape> shapes;
  for (const auto& values : all) {
    Shape& shape = shapes.emplace_back();
    for (std::size_t i = 0; i < axes.size(); ++i) shape[axes[i].first] = values[i];
  }
  return shapes;
}

template <class Op>
KernelFamily family_of(std::string_view op, DeviceKind device, const Axes& axes, const ShapeValues& shapes, const ShapeValues& small,
                       const OpRecipe<Op>& recipe) {
  return {std::string(op),  std::string(name_of(recipe.type)), device, axes, shapes_of(axes, shapes), shapes_of(axes, small),
          preparing(recipe)};
}

struct PolicyShapes {
  ShapeValues cpu, small, gpu;
};

// On the CPU (float32) and, if it has a kernel, on a GPU (gpu_type).
template <class Op>
void add_policy_families(std::string_view op, const Axes& axes, const PolicyShapes& shapes, std::function<Op(Buffers&, const Shape&)> build,
                         std::function<bool(TimedDevice&, const Op&, const Run&)> matches, std::vector<KernelFamily>& families,
                         ElementType gpu_type = ElementType::kBf16) {
  OpRecipe<Op> recipe{ElementType::kF32, std::move(build), work_of_call<Op>, std::move(matches)};
  families.push_back(family_of(op, DeviceKind::kCpu, axes, shapes.cpu, shapes.small, recipe));
  if constexpr (HasCudaKernel<Op>) {
    recipe.type = gpu_type;
    families.push_back(family_of(op, DeviceKind::kGpu, axes, shapes.gpu, shapes.small, recipe));
  }
}

// ||got - expected|| / ||expected||; infinite for a non-finite number.
class RelativeError {
 public:
  void add(double got, double expected) {
    if (!std::isfinite(got)) error_ = std::numeric_limits<double>::infinity();
    error_ += (got - expected) * (got - expected);
    norm_ += expected * expected;
  }
  [[nodiscard]] bool below(double limit) const { return norm_ == 0 ? error_ == 0 : std::sqrt(error_ / norm_) <= limit; }

 private:
  double error_ = 0, norm_ = 0;
};

// One rounding of the output, and float32 sums of a few thousand products.
constexpr double tolerance_of(ElementType type) { return type == ElementType::kF32 ? 1e-4 : type == ElementType::kF16 ? 2e-3 : 1e-2; }

// Up to `most` of [0, n), evenly spread, with both ends.
inline std::vector<std::int64_t> sampled(std::int64_t n, std::int64_t most) {
  std::vector<std::int64_t> at;
  const std::int64_t count = std::min(n, most);
  for (std::int64_t i = 0; i < count; ++i) at.push_back(count == 1 ? 0 : i * (n - 1) / (count - 1));
  return at;
}

// One length, pages in random order.
struct RowsSpec {
  std::int64_t batch = 1, kv_heads = 1, group = 1, len = 0, head_dim = 0;
};
inline const Axes kRowAxes{{"batch", "b"}, {"len", "n"}, {"kv_heads", "kv"}, {"head_dim", "d"}};
// "batch" and "group" default to 1.
RowsSpec rows_spec(const Shape& shape);
KvRows paged_rows(Buffers& buffers, const RowsSpec& spec);
ListedTokens all_tokens(Buffers& buffers, const Shape& shape);

inline const Axes kDecodeAxes{{"batch", "b"}, {"len", "n"}, {"q_heads", "q"}, {"kv_heads", "kv"}, {"head_dim", "d"}};

// [count, q_heads, head_dim], float32.
Queries* queries_at_end(Buffers& buffers, const KvRows& kv, std::int32_t count);

// Keys or values of a row, [len, head_dim].
std::vector<float> row_vectors(TimedDevice& device, const KvRows& kv, std::int64_t row, bool values);

// In CPU memory.
std::int64_t* equal_rows(Buffers& buffers, std::int64_t rows, std::int64_t each);
std::int32_t* equal_counts(Buffers& buffers, std::int64_t rows, std::int64_t count);

inline double dot(const float* x, const float* y, std::int64_t n) {
  double sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(y[i]);
  return sum;
}

}  // namespace kvlab
