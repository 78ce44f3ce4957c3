// Operations of the model on a GPU.
#include <cmath>

#include "bench/kernel/op_case.h"
#include "bench/kernel/registry.h"
#include "kernels/rmsnorm/rmsnorm_cuda.h"

namespace kvlab {

namespace {

using Run = std::function<void()>;

// The residual is rounded to the type before it is normalised.
bool rmsnorm_matches(Device& device, const DeviceRmsNorm& a, const Run& run) {
  const std::int64_t bytes = element_bytes(a.type);
  const auto at = [&](const void* p, std::int64_t t) { return static_cast<const char*>(p) + t * a.width * bytes; };
  std::vector<std::vector<float>> in, before;
  const std::vector<std::int64_t> rows = sampled(a.tokens, 8);
  for (const std::int64_t t : rows) {
    in.push_back(read_floats(device, at(a.in, t), a.width, a.type));
    before.push_back(read_floats(device, at(a.residual, t), a.width, a.type));
  }
  run();
  const std::vector<float> weight = read_floats(device, a.weight, a.width, a.type);
  RelativeError error;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const std::vector<float> out = read_floats(device, at(a.out, rows[r]), a.width, a.type);
    double squares = 0;
    for (std::size_t i = 0; i < out.size(); ++i) squares += std::pow(static_cast<double>(in[r][i]) + static_cast<double>(before[r][i]), 2);
    const double scale = 1 / std::sqrt(squares / static_cast<double>(a.width) + static_cast<double>(a.epsilon));
    for (std::size_t i = 0; i < out.size(); ++i)
      error.add(out[i], (static_cast<double>(in[r][i]) + static_cast<double>(before[r][i])) * scale * static_cast<double>(weight[i]));
  }
  return error.below(tolerance_of(a.type));
}

KernelFamily rmsnorm(ElementType type) {
  OpRecipe<DeviceRmsNorm> recipe;
  recipe.type = type;
  recipe.build = [](Buffers& b, const Shape& s) {
    DeviceRmsNorm a;
    a.tokens = s.at("tokens"), a.width = s.at("width"), a.type = b.type();
    a.in = b.elements(a.tokens * a.width), a.residual = b.elements(a.tokens * a.width), a.weight = b.elements(a.width);
    a.out = b.element_room(a.tokens * a.width);
    return a;
  };
  recipe.work = work_of_shape<DeviceRmsNorm>;
  recipe.matches = rmsnorm_matches;
  return {"rmsnorm",
          std::string(name_of(type)),
          DeviceKind::kGpu,
          {{"tokens", "t"}, {"width", "w"}},
          {{{"tokens", 1}, {"width", 4096}},
           {{"tokens", 64}, {"width", 4096}},
           {{"tokens", 8192}, {"width", 4096}},
           {{"tokens", 65536}, {"width", 4096}}},
          {{{"tokens", 3}, {"width", 40}}},
          preparing(recipe)};
}

}  // namespace

void add_model_cuda_cases(std::vector<KernelFamily>& families) {
  for (const ElementType type : {ElementType::kBf16, ElementType::kF16}) families.push_back(rmsnorm(type));
}

}  // namespace kvlab
