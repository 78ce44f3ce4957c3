#pragma once

#include <string>
#include <utility>
#include <vector>

#include "calibrate/cases/op_case.h"
#include "sim/cost/operations.h"

namespace kvlab {

// On the CPU (float32) and, if it has a kernel, on a GPU (gpu_type).
template <class Op>
void add_policy_families(KernelFamily family, std::function<Op(Buffers&, const Shape&)> build,
                         std::function<bool(TimedDevice&, const Op&, const std::function<void()>&)> matches,
                         const std::vector<Shape>& gpu_shapes, ElementType gpu_type, std::vector<KernelFamily>& families) {
  OpRecipe<Op> recipe{ElementType::kF32, std::move(build), work_of_call<Op>, std::move(matches)};
  family.format = name_of(recipe.type);
  family.device = DeviceKind::kCpu;
  family.prepare = preparing(recipe);
  families.push_back(family);
  if constexpr (HasCudaKernel<Op>) {
    recipe.type = gpu_type;
    family.format = name_of(recipe.type);
    family.device = DeviceKind::kGpu;
    family.shapes = gpu_shapes;
    family.prepare = preparing(recipe);
    families.push_back(family);
  }
}

}  // namespace kvlab
